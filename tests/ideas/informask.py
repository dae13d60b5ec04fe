

class InforMasker(RandomMasker):
    """InforMask: mask the tokens that are most informative about the visible ones.

    Sadeq, Xu, McAuley: "InforMask: Unsupervised Informative Masking for Language Model Pretraining"
    (EMNLP 2022, arXiv:2210.11771).

        relevance of a mask = sum over masked i and visible j of PMI(i, j)
        PMI(a, b) = log p(a, b) / (p(a) p(b))

    For each sentence some random masks are drawn and the one of the highest relevance is kept. This
    is done once, before training: a type's rate is the share of its tokens that was masked. The
    idea of such rates is the paper's; here they are also scaled to meet the budget.

    Deviations, all [D]: p(a, b) is the share of the training examples that hold both, not of
    windows, and a type has no PMI with itself. 30 masks a sentence; we could not check the paper's
    number. All masks of a sentence are equally large. One table for all seeds.
    """

    candidates = 30

    def begin(self, inputs, model, steps):
        V, private = len(self.frequency), torch.Generator().manual_seed(0)
        rows = zip(inputs.train.ids.cpu(), (inputs.train.words >= 0).cpu())
        sentences = [ids[maskable] for ids, maskable in rows]  # N of (n,)

        types = [ids.unique() for ids in sentences]
        pairs = torch.cat([(v[:, None] * V + v).flatten() for v in types])  # a * V + b for (a, b)
        pairs, examples_with = pairs.unique(return_counts=True)  # (P,), (P,): ascending
        first, second = pairs // V, pairs % V
        examples_with_type = torch.ones(V, dtype=torch.long)  # (V,)
        examples_with_type[first[first == second]] = examples_with[first == second]
        expected = examples_with_type[first] * examples_with_type[second] / len(sentences)  # (P,)
        pmi = (examples_with / expected).log().masked_fill(first == second, 0)  # (P,)

        masked = torch.zeros(V, dtype=torch.float64)  # (V,)
        for ids in sentences:
            between = pmi[torch.searchsorted(pairs, ids[:, None] * V + ids)]  # (n, n)
            order = torch.rand(self.candidates, len(ids), generator=private).argsort(1)  # (C, n)
            masks = (order < max(1, round(self.budget * len(ids)))).float()  # (C, n)
            relevance = ((masks @ between) * (1 - masks)).sum(1)  # (C,)
            masked.index_add_(0, ids, masks[relevance.argmax()].double())
        tokens = torch.bincount(torch.cat(sentences), minlength=V)  # (V,)
        scores = (masked / tokens.clamp(min=1)).to(self.frequency.device)  # (V,)
        # [PAD] is never masked, so the lowest score is 0: with spread 1 rates go as the scores.
        everywhere = torch.ones_like(scores, dtype=torch.bool)
        self.type_rates = calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def rates(self):
        return self.type_rates


MASKERS["informask"] = InforMasker
