

class RandomRedrawnMasker(RandomMasker):
    """Control, the noise floor: random masking again, with other masks.

    A run of it differs from the run of `random` with the same seed in nothing but which positions
    were drawn: weights, batches, dropout and corruption are the same. So their difference is what
    a comparison of one seed shows when the maskers are equal.
    """

    private = None  # the generator of the masks, seeded by the first shared draw

    def select(self, ids, words, generator):
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T), shared
        if self.private is None:
            self.private = torch.Generator(ids.device).manual_seed(int(draw[0, 0] * 2 ** 24))
        redrawn = torch.rand(ids.shape, generator=self.private, device=ids.device)  # (B, T)
        return (redrawn < self.rates()[ids]) & (words >= 0)


MASKERS["random-redrawn"] = RandomRedrawnMasker
