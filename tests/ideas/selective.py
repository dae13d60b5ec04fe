

class SelectiveMasker(RandomMasker):
    """Selective masking: mask the tokens that tell the task's labels apart.

    Gu, Zhang, Wang, Liu, Sun: "Train No Evil: Selective Masking for Task-Guided Pre-Training"
    (EMNLP 2020, arXiv:2004.09733). There a fine-tuned classifier judges: a token is masked when the
    words before it and itself make the classifier nearly as sure of the label as the sentence does.

    Deviation [D]: label statistics take the classifier's place, the log-odds ratio of Monroe,
    Colaresi and Quinn, "Fightin' Words" (2008), in standard deviations, with 1 added to each count:

        d = log (n1[v] + 1) / (N1 + types) - log (n0[v] + 1) / (N0 + types)
        rate[v] = c * |d| / sqrt(1 / (n1[v] + 1) + 1 / (n0[v] + 1))

    where n1[v] of the N1 tokens in the training examples of label 1 are v. Without the standard
    deviation every rare word would count as telling. The labels are those of the training split.
    """

    def begin(self, inputs, model, steps):
        train, V = inputs.train, len(self.frequency)
        log_share, variance = [], 0
        for label in (0, 1):
            counted = (train.words >= 0) & (train.labels == label)[:, None]  # (N, T)
            count = torch.bincount(train.ids[counted], minlength=V).double()  # (V,)
            types = (self.frequency > 0).sum()
            log_share.append(((count + 1) / (count.sum() + types)).log())  # (V,)
            variance = variance + 1 / (count + 1)  # (V,)
        scores = (log_share[1] - log_share[0]).abs() / variance.sqrt() * (self.frequency > 0)
        # [PAD] is never masked, so the lowest score is 0: with spread 1 rates go as the scores.
        everywhere = torch.ones_like(scores, dtype=torch.bool)
        self.type_rates = calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def rates(self):
        return self.type_rates


MASKERS["selective"] = SelectiveMasker
