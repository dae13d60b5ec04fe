"""Which tokens to mask: the method of "Typhoon: Gradient-Based Task-Specific Masking for Masked Language Models".

This file is the whole method and nothing else. Read it top to bottom:

    saliency     one_hot_saliency    how much does the MLM loss change with each token of the input?
    calibration  calibrate           scores per token type -> masking rates that meet the budget
    KL           kl_from_uniform     how far is that from masking every token alike?
    corruption   corrupt             what the model sees at the selected positions
    maskers      RandomMasker, WholeWordMasker, TyphoonMasker

Every masker is one class with the same three methods, and train.py calls them in this order at each step:

    selected = masker.select(ids, words, generator)      # which positions does the MLM loss ask for?
    ...forward, loss, backward...
    masker.observe(gradient, weight, ids, words, selected)    # learn from the gradient, if the masker wants to

A new masking idea is one more class here: `python train.py --masker rare-word` finds `RareWordMasker` by its name.

Notation: V token types, B sequences of T positions, H the width of the embeddings. `words` holds the index of the
word each piece belongs to and -1 for special and padding tokens, so `words >= 0` are the maskable positions.
Where a rule comes from is said as [A] the paper's abstract, [C] its authors' 2023 code, [D] our decision.
"""
from __future__ import annotations

import torch
from torch import Tensor


def one_hot_saliency(embedding_gradient: Tensor, embedding_weight: Tensor, ids: Tensor) -> Tensor:
    """The gradient of the MLM loss with respect to the one-hot input, read at the true token of every position.

    With one-hot inputs X (B, T, V) the word embeddings are e = X E, so dL/dX[b,t,v] = <dL/de[b,t], E[v]>. Read at
    v = ids[b,t] this is one dot product a position, O(BTH), and the (B, T, V) tensor is never built.

    embedding_gradient (B, T, H): dL/de, the gradient at the output of the word embedding.
    embedding_weight (V, H): E.  ids (B, T): the true tokens, not the corrupted ones.
    Returns g (B, T), in nats per unit of one-hot input.  Source: Typhoon's saliency [C].
    """
    return (embedding_gradient * embedding_weight[ids]).sum(-1)  # (B, T, H) -> (B, T)


def calibrate(scores: Tensor, seen: Tensor, frequency: Tensor, budget: float, spread: float) -> Tensor:
    """Turn scores per token type into masking rates whose expectation over the training tokens is the budget.

        scaled[v] = (score[v] - min) / (max - min) over the seen types; 1 for a type not seen yet   [C]
        weight[v] = (1 - spread) + spread * scaled[v]                                               [C]
        rate[v]   = min(1, c * weight[v])   with c such that   sum_v frequency[v] rate[v] = budget  [C; the cap: D]

    spread 0, scores that are all equal, or no type seen: every rate is the budget.

    A type not seen yet gets the top weight, so that it is masked, and so scored, soon. A rate is a probability: where
    c * weight would pass 1 it is capped at 1, and c is solved for again among the others, until none passes 1.

    scores (V,), seen (V,) bool, frequency (V,) summing to 1 over the maskable tokens, budget in (0, 1) as a fraction
    of the maskable tokens, spread in [0, 1].  Returns rates (V,) float64 in [0, 1], in the order of the scores.
    Runs on the device of its arguments, O(V) a round. Raises ValueError when budget or spread is out of range.
    """
    if not 0 < budget < 1:
        raise ValueError(f"budget is {budget}, it must lie strictly between 0 and 1")
    if not 0 <= spread <= 1:
        raise ValueError(f"spread is {spread}, it must lie between 0 and 1")
    scores, frequency = scores.double(), frequency.double()  # (V,): float64, so that the budget is met to rounding
    scores = scores / scores.abs().max().clamp(min=1e-300)  # min-max scaling ignores it, and max - min cannot overflow
    lowest = scores.masked_fill(~seen, torch.inf).min()
    highest = scores.masked_fill(~seen, -torch.inf).max()
    scaled = torch.where(seen & (highest > lowest), (scores - lowest) / (highest - lowest), 1.0)
    # With spread 1 the lowest weight is 0, and a budget that the others cannot spend alone could not be met. Above 0, if
    # by next to nothing, it can: c grows as far as it takes.
    weight = ((1 - spread) + spread * scaled).clamp(min=1e-200)  # (V,)
    capped = torch.zeros_like(seen)  # (V,)
    while True:
        c = (budget - (frequency * capped).sum()) / (frequency * weight * ~capped).sum()
        passing = (c * weight > 1) & ~capped
        # No rate can pass 1 while budget <= 1 - spread, the least that weights average: the usual case does not wait
        # for the device to answer.
        if budget <= 1 - spread or not passing.any():
            return (c * weight).clamp(0, 1)
        capped |= passing


def kl_from_uniform(rates: Tensor, frequency: Tensor, budget: float) -> float:
    """sum_v frequency[v] KL(Bernoulli(rates[v]) || Bernoulli(budget)), in nats per token.

    rates (V,) in [0, 1], frequency (V,) summing to 1.  0 for uniform masking; the paper reports 7e-4 for Typhoon [A].
    """
    rates, frequency = rates.double(), frequency.double()
    masked = torch.xlogy(rates, rates / budget)  # xlogy: 0 log 0 = 0
    visible = torch.xlogy(1 - rates, (1 - rates) / (1 - budget))
    return (frequency * (masked + visible)).sum().item()


def corrupt(ids: Tensor, selected: Tensor, mask_id: int, vocabulary_size: int, corruption: str,
            generator: torch.Generator) -> Tensor:
    """The model's input: ids (B, T) with the selected (B, T) positions corrupted.

    "mask": every selected position becomes [MASK] [C].  "80-10-10", as in BERT: 80% become [MASK], 10% a token drawn
    uniformly from the vocabulary, 10% stay as they are; all of them are predicted.
    """
    if corruption == "mask":
        return ids.masked_fill(selected, mask_id)
    draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T)
    random_ids = torch.randint(vocabulary_size, ids.shape, generator=generator, device=ids.device)
    corrupted = ids.masked_fill(selected & (draw < 0.8), mask_id)
    return torch.where(selected & (draw >= 0.9), random_ids, corrupted)


class RandomMasker:
    """Random masking: every maskable position is selected independently, with the same probability, the budget.

    It is also the protocol: other maskers override `rates` (how likely is each token type?), `select` (how are
    positions drawn?) or `observe` (what is learnt from the gradient?). One that overrides `select` sees to the budget
    itself, and the KL in the log stays that of its `rates`.
    """

    def __init__(self, frequency: Tensor, budget: float, spread: float, ema: float):
        """frequency (V,) float64: each type's share of the maskable training tokens, on the run's device."""
        self.frequency, self.budget, self.spread, self.ema = frequency, budget, spread, ema

    def rates(self) -> Tensor:
        """(V,) masking probability of each token type as of now."""
        return torch.full_like(self.frequency, self.budget)

    def select(self, ids: Tensor, words: Tensor, generator: torch.Generator) -> Tensor:
        """ids (B, T), words (B, T) -> selected (B, T) bool. One uniform draw a position, the same for every masker: a
        masker that drew more or less would shift all later draws, and be a little less of a pair for the others."""
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)
        return (draw < self.rates()[ids]) & (words >= 0)

    def observe(self, embedding_gradient: Tensor, embedding_weight: Tensor, ids: Tensor, words: Tensor,
                selected: Tensor) -> None:
        """Called after each backward pass with dL/de (B, T, H), E (V, H), both float32, and the step's batch; nothing to
        learn here."""


class WholeWordMasker(RandomMasker):
    """Whole-word masking: each word is selected with the budget's probability, and all of its pieces with it.

    A word is a maximal run of pieces with one word index. It takes the draw of its first piece.
    """

    def select(self, ids: Tensor, words: Tensor, generator: torch.Generator) -> Tensor:
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)
        position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)  # (B, T)
        continues = torch.zeros_like(words, dtype=torch.bool)
        continues[:, 1:] = words[:, 1:] == words[:, :-1]
        first_piece = position.masked_fill(continues, 0).cummax(1).values  # (B, T): where does this word start?
        return (draw.gather(1, first_piece) < self.budget) & (words >= 0)


class TyphoonMasker(RandomMasker):
    """Typhoon: gradient -> score per token type -> EMA -> rates calibrated to the budget."""

    def __init__(self, frequency: Tensor, budget: float, spread: float, ema: float):
        super().__init__(frequency, budget, spread, ema)
        self.scores = torch.zeros_like(frequency, dtype=torch.float32)  # (V,)
        self.seen = torch.zeros_like(frequency, dtype=torch.bool)  # (V,)

    def rates(self) -> Tensor:
        return calibrate(self.scores, self.seen, self.frequency, self.budget, self.spread)

    def observe(self, embedding_gradient: Tensor, embedding_weight: Tensor, ids: Tensor, words: Tensor,
                selected: Tensor) -> None:
        """new[v] = mean of -g over v's visible positions + mean of +g over its selected ones; a mean of none is 0 [C].

        Masking a visible token takes its one-hot input away, which changes the loss by about -g; showing a selected
        one gives it back, +g. Only maskable positions count: special tokens are never seen [D].
        """
        # Times the number of selected positions: the gradient of the summed loss. That of the mean would be larger in
        # batches of short sentences, which select fewer [D].
        saliency = one_hot_saliency(embedding_gradient, embedding_weight, ids).float() * selected.sum()  # (B, T)
        visible, selected = (words >= 0) & ~selected, (words >= 0) & selected

        def per_type(values: Tensor) -> Tensor:  # (B, T) -> (V,): sum over the positions of each token type
            return torch.zeros_like(self.scores).index_add_(0, ids.flatten(), values.flatten())

        number_visible, number_selected = per_type(visible.float()), per_type(selected.float())
        new = (per_type(-saliency.masked_fill(~visible, 0.0)) / number_visible.clamp(min=1)
               + per_type(saliency.masked_fill(~selected, 0.0)) / number_selected.clamp(min=1))
        self.average(new, present=number_visible + number_selected > 0)

    def average(self, new: Tensor, present: Tensor) -> None:
        """EMA over the steps, for the types present in the batch; new (V,), present (V,) bool.

            score[v] <- (1 - a) score[v] + a new[v]      a: the weight of the newest [C]; new[v] alone at first [D]
        """
        averaged = torch.where(self.seen, (1 - self.ema) * self.scores + self.ema * new, new)
        self.scores = torch.where(present, averaged, self.scores)
        self.seen = self.seen | present


def maskers() -> dict[str, type[RandomMasker]]:
    """Every masker of this file by its name on the command line: WholeWordMasker is whole-word."""
    def dashed(name: str) -> str:
        return "".join("-" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("-")

    return {dashed(name.removesuffix("Masker")): value for name, value in globals().items()
            if name.endswith("Masker") and isinstance(value, type)}
