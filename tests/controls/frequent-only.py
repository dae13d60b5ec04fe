

class FrequentOnlyMasker(RandomMasker):
    """Control: only the most frequent token types are masked, function words and punctuation.

    Types in descending frequency until they hold budget / .9 of the training tokens. All of these
    have one rate, budget / (what they hold), which is .9 or little less; all others are always
    visible. If the choice of tokens matters at all, this choice and its mirror, rare-only, are
    among the most different that meet one budget.
    """

    highest_rate = 0.9

    def begin(self, inputs, model, steps):
        frequency, order = self.frequency.cpu().sort(descending=True, stable=True)  # (V,), (V,)
        held_before = frequency.cumsum(0) - frequency  # (V,): by the types more frequent than it
        chosen = order[held_before < self.budget / self.highest_rate]  # (types chosen,)
        rates = torch.zeros(len(order), dtype=torch.float64)  # (V,)
        rates[chosen] = self.budget / self.frequency.cpu()[chosen].sum()
        self.type_rates = rates.to(self.frequency.device)

    def rates(self):
        return self.type_rates


MASKERS["frequent-only"] = FrequentOnlyMasker
