

class LossWeightedMasker(TyphoonMasker):
    """Token types that the model predicts badly are masked more often.

    Zhang et al.: "Weighted Sampling for Masked Language Modeling" (ICASSP 2023, arXiv:2302.14225),
    its dynamic sampling, by the training loss of each token. We had its abstract only, so that the
    form is [D]:

        score[v] <- (1 - ema) score[v] + ema (mean loss of v at its selected positions)
        rate[v] = c * score[v], and a type without a score yet has the mean score

    ema is --ema, and the first score is the loss itself, both as in Typhoon [D]. The loss is
    computed a second time from the step's logits, without another forward pass.
    """

    uses_spread = False  # rates go as the scores

    def begin(self, inputs, model, steps):
        # What never occurs counts as seen, with score 0: the lowest, so that with spread 1 rates go
        # as the scores.
        self.seen = self.frequency == 0  # (V,)
        model.predict.register_forward_hook(self.keep_logits)

    def keep_logits(self, head, arguments, logits):
        if head.training:
            self.logits = logits.detach().float()  # (S, V)

    def rates(self):
        share = self.frequency * self.seen  # (V,)
        mean = (share * self.scores).sum() / share.sum().clamp(min=1e-9)
        scores = torch.where(self.seen, self.scores, mean)  # (V,)
        everywhere = torch.ones_like(self.seen)
        return calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def observe(self, embedding_gradient, embedding_weight, ids, words, selected):
        targets, V = ids[selected], len(self.scores)  # (S,)
        losses = torch.nn.functional.cross_entropy(self.logits, targets, reduction="none")  # (S,)
        self.logits = None
        all_of_them = torch.ones_like(targets, dtype=torch.bool)
        new = mean_by_type(losses, targets, all_of_them, V)  # (V,)
        present = mean_by_type(torch.ones_like(losses), targets, all_of_them, V) > 0
        self.average(new, present)


MASKERS["loss-weighted"] = LossWeightedMasker
