"""Which tokens to mask: the method of "Typhoon: Gradient-Based Task-Specific Masking for
Masked Language Models". This file is the whole method and nothing else. Top to bottom:

    saliency     one_hot_saliency    how much does the loss change with each token of the input?
    calibration  calibrate           scores per token type -> masking rates that meet the budget
    KL, band     kl_from_uniform     how far is that from masking every token alike?
    corruption   corrupt             what the model sees at the selected positions
    maskers      RandomMasker, WholeWordMasker, TyphoonMasker, and the table of their names

A masker is one class, and train.py calls it in this order:

    masker.begin(inputs, model, steps)                       # once, before the first step
    selected = masker.select(ids, words, generator)          # each step: what is to be predicted?
    ...corrupt, forward, loss, backward...
    masker.observe(gradient, weight, ids, words, selected)   # learn from the gradient

Between them it reads masker.rates() for the log: that changes nothing.

A new masking idea is one more class here, and its name in MASKERS.

V token types, B sequences of T positions, H the width of the embeddings. `words` holds the index
of the word that each piece belongs to, and -1 for special and padding tokens: `words >= 0` are the
maskable positions. Sources of rules: [A] the paper's abstract, [C] its authors' 2023 code for the
first version, [D] our decision.
"""
from __future__ import annotations

import torch
from torch import Tensor


def one_hot_saliency(embedding_gradient: Tensor, embedding_weight: Tensor, ids: Tensor) -> Tensor:
    """The gradient of the loss with respect to the one-hot input, at the true token.   [C]

    L is the loss. With one-hot inputs X (B, T, V) the word embeddings are e = X E: dL/dX[b,t,v] is
    <dL/de[b,t], E[v]>. At v = ids[b,t] this is one dot product a position: O(BTH), and the
    (B, T, V) tensor is never built.

    embedding_gradient (B, T, H): dL/de, the gradient at the output of the word embedding.
    embedding_weight (V, H): E.  ids (B, T): the true tokens, not the corrupted ones.
    Returns g (B, T), in nats per unit of one-hot input.

    >>> E = torch.tensor([[1., 0.], [0., 2.]])
    >>> one_hot_saliency(torch.tensor([[[3., 5.], [3., 5.]]]), E, ids=torch.tensor([[0, 1]]))
    tensor([[ 3., 10.]])
    """
    return (embedding_gradient * embedding_weight[ids]).sum(-1)  # (B, T, H) -> (B, T)


def mean_by_type(values: Tensor, ids: Tensor, where: Tensor, number_of_types: int) -> Tensor:
    """values, ids, where (B, T) -> (V,): each type's mean over its positions in `where`.

    0 for a type that has none."""
    zeros = torch.zeros(number_of_types, dtype=values.dtype, device=ids.device)  # (V,)
    total = zeros.index_add(0, ids.flatten(), values.masked_fill(~where, 0).flatten())
    count = zeros.index_add(0, ids.flatten(), where.to(values.dtype).flatten())
    return total / count.clamp(min=1)


def calibrate(scores: Tensor, seen: Tensor, frequency: Tensor, budget: float,
              spread: float) -> Tensor:
    """Scores per token type -> masking rates whose mean over the training tokens is the budget.

        scaled[v] = (score[v] - min) / (max - min) over the seen types; 1 for one not seen yet [C]
        weight[v] = (1 - spread) + spread * scaled[v]                                          [C]
        rate[v]   = min(1, c * weight[v]), with c such that sum_v frequency[v] rate[v] = budget
                                                                             [C; the cap at 1: D]

    A type not seen yet has the top weight, so that it is masked, and so scored, soon. Spread 0,
    scores that are all equal, or no type seen: every rate is the budget.

    scores (V,), seen (V,) bool, frequency (V,) summing to 1 over the maskable training tokens,
    budget in (0, 1) as a fraction of the maskable tokens, spread in [0, 1].
    Returns rates (V,) float64 in [0, 1], in the order of the scores, on the device of the scores.
    Raises ValueError when budget or spread is out of range.

    Weights .6, .8 and 1 average .75 over the tokens, so c = .3 / .75 = .4:

    >>> calibrate(scores=torch.tensor([2., 3., 4.]), seen=torch.tensor([True, True, True]),
    ...           frequency=torch.tensor([.5, .25, .25]), budget=.3, spread=.4)
    tensor([0.2400, 0.3200, 0.4000], dtype=torch.float64)
    """
    if not 0 < budget < 1:
        raise ValueError(f"budget is {budget}, it must lie strictly between 0 and 1")
    if spread is None or not 0 <= spread <= 1:
        raise ValueError(f"spread is {spread}, it must lie between 0 and 1; "
                         "a masker that calibrates says uses_spread = True")
    scores, frequency = scores.double(), frequency.double()  # so that the budget is met to rounding
    lowest = scores.masked_fill(~seen, torch.inf).min()
    highest = scores.masked_fill(~seen, -torch.inf).max()
    scaled = (scores - lowest) / (highest - lowest)
    scaled = torch.where(seen & (highest > lowest), scaled, 1.0)  # (V,)
    weight = (1 - spread) + spread * scaled  # (V,)
    # With spread 1 the lowest weight is 0. Were all others capped at 1, c would divide by 0; with a
    # weight next to 0 the lowest take what is left of a large budget.
    weight = weight.clamp(min=1e-200)
    capped = torch.zeros_like(seen)  # (V,)
    while True:
        remaining = budget - (frequency * capped).sum()
        c = remaining / (frequency * weight * ~capped).sum()
        above_1 = (c * weight > 1) & ~capped
        # The weights average at least 1 - spread. If the budget is no more than that, c <= 1 and no
        # rate passes 1: the usual case does not wait for the device to answer. Otherwise cap those
        # that do and solve for c again; c only grows, so that they stay at 1.
        if budget <= 1 - spread or not above_1.any():
            return (c * weight).clamp(0, 1)
        capped |= above_1


def kl_from_uniform(rates: Tensor, frequency: Tensor, budget: float) -> Tensor:
    """sum_v frequency[v] KL(Bernoulli(rates[v]) || Bernoulli(budget)), in nats per token.

    rates (V,) in [0, 1], frequency (V,) summing to 1. Returns a scalar tensor, on their device:
    0 for uniform masking; the paper reports 7e-4 for Typhoon [A].

    >>> kl_from_uniform(torch.tensor([0., 1.]), torch.tensor([.5, .5]), budget=.5)  # ln 2
    tensor(0.6931, dtype=torch.float64)
    """
    rates, frequency = rates.double(), frequency.double()
    masked = torch.xlogy(rates, rates / budget)  # xlogy: 0 log 0 = 0
    visible = torch.xlogy(1 - rates, (1 - rates) / (1 - budget))
    return (frequency * (masked + visible)).sum()


def band(rates: Tensor, frequency: Tensor) -> dict[str, float]:
    """The quantiles of the rates (V,), weighted by frequency (V,): so many of the training tokens
    have no higher rate.

    >>> band(torch.tensor([.25, .5, .75]), frequency=torch.tensor([.25, .5, .25]))["75%"]
    0.5
    """
    rates, order = rates.cpu().sort(stable=True)
    share = frequency.cpu()[order].cumsum(0)  # (V,): of the tokens, up to each type, to rounding
    quantiles = {"lowest": 1e-8, "5%": .05, "25%": .25, "50%": .5, "75%": .75, "95%": .95,
                 "highest": 1}
    return {name: rates[(share < quantile - 1e-9).sum()].item()
            for name, quantile in quantiles.items()}


def corrupt(ids: Tensor, selected: Tensor, mask_id: int, vocabulary_size: int, corruption: str,
            generator: torch.Generator) -> Tensor:
    """The model's input: ids (B, T) with the selected (B, T) positions corrupted.

    "mask": every selected position becomes [MASK] [C].  "80-10-10", as in BERT: 80% of them become
    [MASK], 10% a token drawn uniformly from the vocabulary, 10% stay as they are. All of them are
    predicted.
    """
    if corruption == "mask":
        return ids.masked_fill(selected, mask_id)
    draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T)
    drawn_ids = torch.randint(vocabulary_size, ids.shape, generator=generator, device=ids.device)
    corrupted = ids.masked_fill(selected & (draw < 0.8), mask_id)
    return torch.where(selected & (draw >= 0.9), drawn_ids, corrupted)


# ---- Maskers ------------------------------------------------------------------------------------

class RandomMasker:
    """Random masking: every maskable position is selected with the same probability, the budget.

    It is also the protocol. Others override what their idea changes: `rates` (how likely is each
    token type?), `select` (how are positions drawn?), `observe` (what is learnt from the
    gradient?), `begin` (what else is to be seen?). An option of an idea is a class attribute, and
    a variant a subclass of two lines with a name of its own.
    """

    uses_spread = False  # True: `rates` depends on self.spread, and a run is one spread's

    def __init__(self, frequency: Tensor, budget: float, spread: float | None, ema: float):
        """frequency (V,) float64: each type's share of the maskable training tokens, on the run's
        device. spread is None for a class that does not use it."""
        self.frequency, self.budget, self.spread, self.ema = frequency, budget, spread, ema

    def begin(self, inputs, model, steps: int) -> None:
        """Called once, before the first of `steps` steps. The built-in maskers need nothing of it.

        inputs.train is the training split, all N examples padded to the longest: ids, segments,
        words, attention_mask (N, T) and labels (N,). inputs.tokenizer has tokens (id -> string),
        pad_id, sep_id and mask_id. model is the MLM that is trained: model.encoder,
        model.encoder.embed_words(ids), model.forward_selected(embedded, segments, attention_mask,
        selected) and model.predict. Keep what your idea needs; it is the run's own, on its device.

        The step's logits (S, V): model.predict.register_forward_hook, which also fires, with the
        model in eval mode, for the dev loss. Attention: hooks on model.encoder.layers[i].query and
        .key (B, T, H), which has .heads heads. A batch's attention mask: real = ids != pad_id. Its
        segments: is_sep = (ids == sep_id).long(), then (is_sep.cumsum(1) - is_sep) * real.
        Steps: `select` and `observe` are called once in each, and for the dev loss not at all.

        A masker that runs the model itself stays pure: model.eval() before and model.train() after
        it, so that no dropout is drawn, and torch.autograd.grad, which leaves the parameters' .grad
        alone. Draws from torch's global generator are safe in `begin`, since dropout is seeded
        after it, and nowhere else.
        """

    def rates(self) -> Tensor | None:
        """(V,) masking probability of each token type as of now, for `select` and for the log.
        None: this masker's `select` goes by position, and there is no such thing."""
        return torch.full_like(self.frequency, self.budget)

    def select(self, ids: Tensor, words: Tensor, generator: torch.Generator) -> Tensor:
        """ids (B, T), words (B, T) -> selected (B, T) bool. In training only maskable ones count.

        One uniform draw a position, the same for every masker: a masker that drew more or fewer
        would shift all later draws, and no longer be paired with the others.
        """
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T)
        return (draw < self.rates()[ids]) & (words >= 0)

    def observe(self, embedding_gradient: Tensor, embedding_weight: Tensor, ids: Tensor,
                words: Tensor, selected: Tensor) -> None:
        """Called after each backward pass, before clipping and outside autocast, with dL/de
        (B, T, H), E (V, H) and the batch. L is the mean over the selected positions: times
        selected.sum() it is that of the summed loss. MAE-LM's encoder never sees the selected
        positions: dL/de is 0 there, and of Typhoon's score the visible half is left.
        """


class WholeWordMasker(RandomMasker):
    """Whole-word masking: each word is selected with the budget's probability, all pieces with it.

    A word is a maximal run of pieces with one word index. It takes the draw of its first piece.
    """

    def select(self, ids: Tensor, words: Tensor, generator: torch.Generator) -> Tensor:
        draw = torch.rand(ids.shape, generator=generator, device=ids.device)  # (B, T)
        position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)  # (B, T)
        continues = torch.zeros_like(words, dtype=torch.bool)  # (B, T): its word began before it
        continues[:, 1:] = words[:, 1:] == words[:, :-1]
        first_piece = position.masked_fill(continues, 0).cummax(1).values  # (B, T)
        return (draw.gather(1, first_piece) < self.budget) & (words >= 0)


class TyphoonMasker(RandomMasker):
    """Typhoon: gradient -> score per token type -> EMA -> rates calibrated to the budget."""

    uses_spread = True

    def __init__(self, frequency: Tensor, budget: float, spread: float | None, ema: float):
        super().__init__(frequency, budget, spread, ema)
        self.scores = torch.zeros_like(frequency, dtype=torch.float32)  # (V,)
        self.seen = torch.zeros_like(frequency, dtype=torch.bool)  # (V,)

    def rates(self) -> Tensor:
        return calibrate(self.scores, self.seen, self.frequency, self.budget, self.spread)

    def observe(self, embedding_gradient: Tensor, embedding_weight: Tensor, ids: Tensor,
                words: Tensor, selected: Tensor) -> None:
        """new[v] = mean of -g over the visible positions of v + mean of +g over its selected ones

        Both are, to first order, how the loss changes when a position is toggled: hiding a visible
        token takes its one-hot input away (-g), showing a selected one gives it back (+g). The
        [MASK] that stands in its place is left out. So a type scores high where toggling it raises
        the loss. Signs and sum are [C]'s. Special tokens are never scored [D].

        g is the gradient of the *summed* loss: that of the mean goes as 1 / (selected positions),
        and in batches of like length the short ones would set the range of the scores [D].
        """
        g = one_hot_saliency(embedding_gradient, embedding_weight, ids) * selected.sum()  # (B, T)
        maskable = words >= 0  # (B, T)
        visible = maskable & ~selected  # (B, T)
        V = len(self.scores)
        new = mean_by_type(-g, ids, visible, V) + mean_by_type(+g, ids, selected, V)  # (V,)
        present = mean_by_type(torch.ones_like(g), ids, maskable, V) > 0  # (V,)
        self.average(new, present)

    def average(self, new: Tensor, present: Tensor) -> None:
        """Exponential moving average over the steps, of the types present (V,) in the batch.

            score[v] <- (1 - a) score[v] + a new[v]      a = self.ema: the newest's weight    [C]
            the first time, score[v] <- new[v]                                                [D]
        """
        averaged = torch.where(self.seen, (1 - self.ema) * self.scores + self.ema * new, new)
        self.scores = torch.where(present, averaged, self.scores)
        self.seen = self.seen | present


MASKERS = {"random": RandomMasker, "whole-word": WholeWordMasker, "typhoon": TyphoonMasker}
