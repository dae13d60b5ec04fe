

class RareOnlyMasker(RandomMasker):
    """Control: only the least frequent token types are masked, the mirror of frequent-only.

    Types in ascending frequency until they hold budget / .9 of the training tokens. All of these
    have one rate, budget / (what they hold), which is .9 or little less; all others are always
    visible.
    """

    highest_rate = 0.9

    def begin(self, inputs, model, steps):
        frequency, order = self.frequency.cpu().sort(stable=True)  # (V,), (V,): ascending
        held_before = frequency.cumsum(0) - frequency  # (V,): by the types less frequent than it
        chosen = order[held_before < self.budget / self.highest_rate]  # (types chosen,)
        rates = torch.zeros(len(order), dtype=torch.float64)  # (V,)
        rates[chosen] = self.budget / self.frequency.cpu()[chosen].sum()
        self.type_rates = rates.to(self.frequency.device)

    def rates(self):
        return self.type_rates


MASKERS["rare-only"] = RareOnlyMasker
