

class SampleRatioMasker(RandomMasker):
    """Each sentence has a masking ratio of its own, drawn for it.

    Ghazvininejad, Levy, Liu, Zettlemoyer: "Mask-Predict: Parallel Decoding of Conditional Masked
    Language Models" (EMNLP 2019, arXiv:1904.09324), where the number of masked tokens is uniform
    from one to the length.

    Deviation [D]: the ratio is uniform from 0 to twice the budget, which is its mean (above a
    budget of 1/2: from 2 * budget - 1 to 1). The draw at [CLS], which is never masked, gives it.
    """

    def rates(self):
        return None  # by sentence, not by type

    def select(self, ids, words, generator):
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T)
        half_width = min(self.budget, 1 - self.budget)
        ratio = self.budget + half_width * (2 * draw[:, :1] - 1)  # (B, 1)
        return (draw < ratio) & (words >= 0)


MASKERS["sample-ratio"] = SampleRatioMasker
