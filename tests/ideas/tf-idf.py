

class TfIdfMasker(RandomMasker):
    """TF-IDF: mask what is frequent in its sentence and rare in the others.

    The measure: Spärck Jones, "A statistical interpretation of term specificity and its
    application in retrieval" (1972), and Salton and Buckley, "Term-weighting approaches in
    automatic text retrieval" (1988). We found no paper to follow that masks by it: the rest is [D].

        tf(v, d) = count of v in d / tokens of d,  idf(v) = log(N / examples that hold v)
        rate[v] = c * mean over the tokens of v of tf * idf

    A document is one training example. The mean makes a rate per type of a weight per position: in
    a sentence nearly every word occurs once, so that idf decides.
    """

    def begin(self, inputs, model, steps):
        ids, maskable = inputs.train.ids, inputs.train.words >= 0  # (N, T), (N, T)
        V = len(self.frequency)
        equal = (ids[:, :, None] == ids[:, None, :]) & maskable[:, None, :]  # (N, T, T)
        tf = equal.sum(2) / maskable.sum(1, keepdim=True)  # (N, T)
        first = maskable & ~equal.tril(-1).any(2)  # (N, T): of its type in its example
        examples_with = torch.bincount(ids[first], minlength=V)  # (V,)
        idf = (len(ids) / examples_with.clamp(min=1)).log()  # (V,)
        scores = mean_by_type(tf * idf[ids], ids, maskable, V)  # (V,)
        # [PAD] is never masked, so the lowest score is 0: with spread 1 rates go as the scores.
        everywhere = torch.ones_like(scores, dtype=torch.bool)
        self.type_rates = calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def rates(self):
        return self.type_rates


MASKERS["tf-idf"] = TfIdfMasker
