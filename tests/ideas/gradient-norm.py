

class GradientNormMasker(TyphoonMasker):
    """Token types at which the loss is steepest are masked more often.

    The measure: Li, Chen, Hovy, Jurafsky, "Visualizing and Understanding Neural Models in NLP"
    (NAACL 2016, arXiv:1506.01066), whose saliency is the size of the first derivative by a word's
    embedding. We found no paper to follow that masks by its norm: the rest is [D].

        g = |dL/de[t]|, the Euclidean norm, of the summed loss
        score[v] <- (1 - ema) score[v] + ema (mean of g over the positions of v)
        rate[v] = c * score[v], and a type without a score yet has the mean score

    Beside Typhoon: size and not direction, and no difference between visible and selected. Where
    the gradient is exactly 0 the encoder saw nothing (MAE-LM's selected positions), and nothing is
    scored.
    """

    uses_spread = False  # rates go as the scores

    def begin(self, inputs, model, steps):
        # What never occurs counts as seen, with score 0: the lowest, so that with spread 1 rates go
        # as the scores.
        self.seen = self.frequency == 0  # (V,)

    def rates(self):
        share = self.frequency * self.seen  # (V,)
        mean = (share * self.scores).sum() / share.sum().clamp(min=1e-9)
        scores = torch.where(self.seen, self.scores, mean)  # (V,)
        everywhere = torch.ones_like(self.seen)
        return calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def observe(self, embedding_gradient, embedding_weight, ids, words, selected):
        norm = embedding_gradient.float().norm(dim=-1) * selected.sum()  # (B, T)
        scored, V = (words >= 0) & (norm > 0), len(self.scores)  # (B, T)
        new = mean_by_type(norm, ids, scored, V)  # (V,)
        present = mean_by_type(torch.ones_like(norm), ids, scored, V) > 0
        self.average(new, present)


MASKERS["gradient-norm"] = GradientNormMasker
