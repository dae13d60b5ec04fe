

class EntropyMasker(TyphoonMasker):
    """Token types in whose place the model is undecided are masked more often.

    Srinivasagan, Hartung, Georges: "Entropy-aware Masking for Masked Language Modeling" (*SEM 2026,
    arXiv:2605.28526), where the entropy of the predictions, another model's or the trained model's
    own, chooses the tokens to mask. We had its abstract only, so that the form is [D]:

        h = - sum_w p(w) log p(w) at a selected position, p the step's prediction there
        score[v] <- (1 - ema) score[v] + ema (mean h at the selected positions of v)
        rate[v] = c * score[v], and a type without a score yet has the mean score

    The entropy is read off the logits of the ordinary step, so that there is no other forward pass,
    but for that a rate per type and not per position.
    """

    uses_spread = False  # rates go as the scores

    def begin(self, inputs, model, steps):
        # What never occurs counts as seen, with score 0: the lowest, so that with spread 1 rates go
        # as the scores.
        self.seen = self.frequency == 0  # (V,)
        model.predict.register_forward_hook(self.keep_entropy)

    def keep_entropy(self, head, arguments, logits):
        if head.training:
            log_p = logits.detach().float().log_softmax(-1)  # (S, V)
            self.entropy = -(log_p.exp() * log_p).sum(-1)  # (S,)

    def rates(self):
        share = self.frequency * self.seen  # (V,)
        mean = (share * self.scores).sum() / share.sum().clamp(min=1e-9)
        scores = torch.where(self.seen, self.scores, mean)  # (V,)
        everywhere = torch.ones_like(self.seen)
        return calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def observe(self, embedding_gradient, embedding_weight, ids, words, selected):
        types, V = ids[selected], len(self.scores)  # (S,)
        all_of_them = torch.ones_like(types, dtype=torch.bool)
        new = mean_by_type(self.entropy, types, all_of_them, V)  # (V,)
        present = mean_by_type(torch.ones_like(self.entropy), types, all_of_them, V) > 0
        self.average(new, present)


MASKERS["entropy"] = EntropyMasker
