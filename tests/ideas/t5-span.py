

import random


class T5SpanMasker(RandomMasker):
    """T5: a set number of spans a sentence, three pieces long on average.

    Raffel et al.: "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer" (JMLR 2020, arXiv:1910.10683), as `random_spans_noise_mask` of its code has it, of
    n pieces, with random_roll:

        masked = budget * n,  spans = max(1, round(masked / 3))
        cut the masked pieces into `spans` parts at random, and the others likewise; lay them out in
        turn, a visible part first; roll all by a random offset

    The roll is an option there: without it the last piece is always masked, and of a short sentence
    nothing else. Deviations: `masked` is rounded up or down at random, not to the nearest [D]. The
    two sentences of a pair are one sequence: a span can go on behind [SEP] [D]. Each masked piece
    becomes a [MASK], where T5 has one sentinel for a span.
    """

    mean_length = 3

    def rates(self):
        return None  # by position, not by type

    def select(self, ids, words, generator):
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T), the shared
        private = random.Random(int(draw[0, 0] * 2 ** 24))
        selected = torch.zeros(ids.shape, dtype=torch.bool)  # (B, T)
        for row, maskable in zip(selected, (words >= 0).cpu()):  # (T,), (T,)
            n = int(maskable.sum())
            masked = min(int(self.budget * n + private.random()), n - 1)
            if masked > 0:
                spans = min(max(1, round(masked / self.mean_length)), n - masked)
                visible_parts = self.cut(n - masked, spans, private)
                masked_parts = self.cut(masked, spans, private)
                mask = []
                for visible_length, masked_length in zip(visible_parts, masked_parts):
                    mask += [False] * visible_length + [True] * masked_length
                row[maskable] = torch.tensor(mask).roll(private.randrange(n))  # (n,)
        return selected.to(ids.device)

    def cut(self, total, parts, private):
        """Lengths of 1 or more that sum to the total, every way of it as likely."""
        cuts = [0, *sorted(private.sample(range(1, total), parts - 1)), total]
        return [end - begin for begin, end in zip(cuts, cuts[1:])]


MASKERS["t5-span"] = T5SpanMasker
