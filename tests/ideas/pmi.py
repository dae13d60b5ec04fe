

import math
from collections import Counter
from itertools import groupby


class PMIMasker(WholeWordMasker):
    """PMI-Masking: words that belong together are masked together.

    Levine, Lenz, Lieber, Abend, Leyton-Brown, Tennenholtz, Shoham: "PMI-Masking: Principled Masking
    of Correlated Spans" (ICLR 2021, arXiv:2010.01825), and its code's README.

        PMI(w1..wn) = min over the ways s to cut it of log p(w1..wn) / prod_{part in s} p(part)

    Of the n-grams of 2 to 5 words that occur more than 10 times, those of the highest PMI are the
    masking vocabulary: half of it bigrams, a quarter trigrams, an eighth each 4- and 5-grams. Each
    is one unit in masking, a longer one before one that it contains; other words are their own.

    Deviations: counted on the task's sentences. The vocabulary is as large as there are such
    bigrams, so that the better half of them is in [D; 800,000 there]. Of two that overlap the first
    is taken [D; a random one there]. Each unit is drawn with the budget's probability [D; units
    until the share is spent there], so that every type's rate is still the budget.
    """

    longest, fewest = 5, 10
    shares = {2: 1 / 2, 3: 1 / 4, 4: 1 / 8, 5: 1 / 8}

    def begin(self, inputs, model, steps):
        counts = {n: Counter() for n in range(1, self.longest + 1)}
        for row in zip(inputs.train.ids.tolist(), inputs.train.words.tolist()):
            for _, sentence in self.sentences(*row):
                for n in counts:
                    counts[n].update(tuple(sentence[i:i + n]) for i in range(len(sentence) - n + 1))
        log_p = {}
        for ngrams in counts.values():
            log_total = math.log(max(ngrams.total(), 1))
            log_p |= {ngram: math.log(count) - log_total for ngram, count in ngrams.items()}
        frequent = {n: [ngram for ngram, count in counts[n].items() if count > self.fewest]
                    for n in self.shares}
        self.vocabulary = set()
        for n, share in self.shares.items():
            ranked = sorted(frequent[n], key=lambda ngram: self.pmi(ngram, log_p), reverse=True)
            self.vocabulary.update(ranked[:round(share * len(frequent[2]))])

    def pmi(self, ngram, log_p):
        """log p of the whole, less that of the likeliest way to cut it."""
        def likeliest(words):
            return max(log_p[words], cut(words)) if len(words) > 1 else log_p[words]

        def cut(words):
            return max(likeliest(words[:i]) + likeliest(words[i:]) for i in range(1, len(words)))

        return log_p[ngram] - cut(ngram)

    def sentences(self, ids, words):
        """Of each run of maskable positions: where it starts, and its words as tuples of ids."""
        for maskable, run in groupby(range(len(ids)), key=lambda t: words[t] >= 0):
            if maskable:
                run = list(run)
                pieces = [list(word) for _, word in groupby(run, key=lambda t: words[t])]
                yield run[0], [tuple(ids[t] for t in word) for word in pieces]

    def select(self, ids, words, generator):
        """The units take the place of the words."""
        units = [[-1] * ids.shape[1] for _ in range(len(ids))]  # (B, T)
        for unit, *row in zip(units, ids.tolist(), words.tolist()):
            for start, sentence in self.sentences(*row):
                while sentence:
                    n = self.longest
                    while n > 1 and tuple(sentence[:n]) not in self.vocabulary:
                        n -= 1
                    end = start + sum(len(word) for word in sentence[:n])
                    unit[start:end] = [start] * (end - start)
                    start, sentence = end, sentence[n:]
        return super().select(ids, torch.tensor(units, device=ids.device), generator)


MASKERS["pmi"] = PMIMasker
