

import random


class SpanMasker(RandomMasker):
    """SpanBERT: spans of whole words, until the sentence's share is spent.

    Joshi, Chen, Liu, Weld, Zettlemoyer, Levy: "SpanBERT: Improving Pre-training by Representing and
    Predicting Spans" (TACL 2020, arXiv:1907.10529).

        P(length = l words) = .2 * .8^(l-1) for l = 1..10, scaled to sum to 1; the mean is 3.8
        draw a length, and a word at random to begin with; mask; again until the share is spent

    Deviations: the share is rounded up or down at random, since a short sentence's 30% is hardly a
    whole number [D]. A span ends at [SEP] [D]. The span boundary objective is no masking rule and
    is left out.
    """

    longest, stop = 10, 0.2

    def rates(self):
        return None  # by position, not by type

    def select(self, ids, words, generator):
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T), the shared
        private = random.Random(int(draw[0, 0] * 2 ** 24))
        lengths = range(1, self.longest + 1)  # in words
        chances = [(1 - self.stop) ** length for length in lengths]  # `choices` scales them
        selected = torch.zeros(ids.shape, dtype=torch.bool)  # (B, T)
        for row, word in zip(selected, words.tolist()):  # (T,), T
            begins = [t for t in range(1, len(word)) if word[t] >= 0 and word[t] != word[t - 1]]
            share = int(self.budget * sum(w >= 0 for w in word) + private.random())
            masked = set()
            while len(masked) < share:
                t = private.choice(begins)
                [length] = private.choices(lengths, chances)
                while len(masked) < share and length > 0 and word[t] >= 0:
                    masked.add(t)
                    t += 1
                    length -= t in begins  # one word less to go
            row[sorted(masked)] = True
        return selected.to(ids.device)


MASKERS["span"] = SpanMasker
