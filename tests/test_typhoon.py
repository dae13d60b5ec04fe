"""The method against its literal definition: one-hot gradients, calibration by brute force, sums
written out, drawn masks."""
import doctest
import math
import random

import pytest
import torch
import torch.nn.functional as F

import models
import tiny
import typhoon

GRID = [(budget, spread) for budget in (0.01, 0.15, 0.3, 0.5, 0.9, 0.99)
        for spread in (0.0, 0.4, 0.9, 1.0)]


# ---- Saliency and scores ------------------------------------------------------------------------

@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_saliency_is_the_gradient_at_a_literal_one_hot_input(model_type):
    """The (B, T, V) one-hot input, differentiated by autograd, and read at the true tokens."""
    torch.manual_seed(0)
    model = models.MaskedLM(tiny.config(model_type)).double().eval()
    V = model.config.vocab_size
    ids = torch.randint(5, V, (3, 9))
    segments = torch.zeros_like(ids)
    segments[:, 5:] = 1
    attention_mask = torch.ones(3, 9, dtype=torch.bool)
    attention_mask[2, 7:] = False
    selected = (torch.rand(3, 9) < 0.4) & attention_mask
    embedding_weight = model.encoder.word_embeddings.weight  # (V, H)

    corrupted = ids.masked_fill(selected, 4)
    one_hot = F.one_hot(corrupted, V).double().requires_grad_()  # (B, T, V)
    embeddings = one_hot @ embedding_weight  # only this input path counts, not the tied output
    embeddings.retain_grad()
    logits = model.forward_selected(embeddings, segments, attention_mask, selected)
    F.cross_entropy(logits, ids[selected]).backward()

    literal = one_hot.grad.gather(2, ids[..., None])[..., 0]  # (B, T)
    saliency = typhoon.one_hot_saliency(embeddings.grad, embedding_weight, ids)
    assert literal.abs().max() > 1e-6
    torch.testing.assert_close(saliency, literal, rtol=1e-10, atol=1e-16)


def test_scores_by_hand():
    """Two types, two steps: mean of -g over visible and of +g over selected positions, then EMA."""
    frequency = torch.full((4,), 0.25, dtype=torch.float64)
    masker = typhoon.TyphoonMasker(frequency, budget=0.3, spread=0.4, ema=0.8)
    ids = torch.tensor([[0, 1, 1, 2, 2, 3]])
    words = torch.tensor([[-1, 0, 1, 2, 3, -1]])  # types 0 and 3 are special here
    selected = torch.tensor([[False, False, True, True, True, False]])
    identity = torch.eye(4)  # with E the identity, g is the gradient's entry at the true token
    gradient = torch.zeros(1, 6, 4)
    for position, value in enumerate([9.0, 0.5, 2.0, 1.0, 3.0, 9.0]):
        gradient[0, position, ids[0, position]] = value

    masker.observe(gradient, identity, ids, words, selected)
    # The loss is a mean over three positions, so each g counts three times. Type 1: -0.5 visible,
    # +2 selected. Type 2: no visible position, the mean of 1 and 3 selected.
    assert masker.scores.tolist() == pytest.approx([0, 3 * 1.5, 3 * 2.0, 0])
    assert masker.seen.tolist() == [False, True, True, False]

    selected = torch.tensor([[True, False]])  # [CLS], as no masker would: g counts once
    masker.observe(gradient[:, :2], identity, ids[:, :2], words[:, :2], selected)
    assert masker.scores.tolist() == pytest.approx([0, 0.2 * 4.5 + 0.8 * -0.5, 6.0, 0])


def test_a_score_does_not_depend_on_the_length_of_the_other_sentences():
    """One sentence, batched with a short or with a long one, gives its types the same scores."""
    torch.manual_seed(0)
    model = models.MaskedLM(tiny.config()).double().eval()
    V = model.config.vocab_size
    sentence = torch.randint(5, 15, (1, 8))
    scores = []
    for other_length in (2, 8):
        ids = torch.cat([sentence, torch.randint(15, V, (1, 8))])  # no type in common
        attention_mask = torch.arange(8) < torch.tensor([[8], [other_length]])
        words = torch.arange(8).expand(2, 8).masked_fill(~attention_mask, -1)
        selected = (words >= 0) & (words % 2 == 0)
        embeddings = model.encoder.embed_words(ids.masked_fill(selected, 4))
        embeddings.retain_grad()
        segments = torch.zeros_like(ids)
        logits = model.forward_selected(embeddings, segments, attention_mask, selected)
        F.cross_entropy(logits, ids[selected]).backward()
        masker = typhoon.TyphoonMasker(torch.ones(V).double() / V, 0.3, 0.4, 0.8)
        weight = model.encoder.word_embeddings.weight.detach()
        masker.observe(embeddings.grad, weight, ids, words, selected)
        scores.append(masker.scores[:15].double())
    assert scores[0].abs().max() > 1e-6
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-9, atol=0)


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(typhoon)
    assert result.attempted >= 4 and result.failed == 0


# ---- Calibration --------------------------------------------------------------------------------

def test_calibration_by_hand():
    scores = torch.tensor([2.0, 3.0, 4.0])
    frequency = torch.tensor([0.5, 0.25, 0.25])
    all_seen = torch.tensor([True, True, True])

    # Weights 0.6, 0.8, 1.0: sum f w = 0.75, so c = 0.3 / 0.75 = 0.4.
    rates = typhoon.calibrate(scores, all_seen, frequency, budget=0.3, spread=0.4)
    assert rates.tolist() == pytest.approx([0.24, 0.32, 0.4])

    # At budget 0.9, c = 1.2 would give 1.2 to the last: capped at 1. The others share 0.65, and
    # c = 0.65 / 0.5 = 1.3 takes the second to 1.04: capped too. The first has (0.9 - 0.5) / 0.5.
    rates = typhoon.calibrate(scores, all_seen, frequency, budget=0.9, spread=0.4)
    assert rates.tolist() == pytest.approx([0.8, 1.0, 1.0])

    # A type not seen yet has the top weight, whatever its score: weights 0.6, 1, 1, c = 0.3 / 0.8.
    seen = torch.tensor([True, True, False])
    scores = torch.tensor([2.0, 4.0, -9.0])
    rates = typhoon.calibrate(scores, seen, frequency, budget=0.3, spread=0.4)
    assert rates.tolist() == pytest.approx([0.6 * 0.375, 0.375, 0.375])


def calibrate_by_bisection(scores, seen, frequency, budget, spread):
    """The definition in plain floats: halve intervals until sum_v f[v] min(1, c w[v]) = budget."""
    known = [score for score, is_seen in zip(scores, seen) if is_seen]
    if not known or max(known) == min(known):
        return [budget] * len(scores)
    low, high = min(known), max(known)
    scaled = [(score - low) / (high - low) if is_seen else 1.0
              for score, is_seen in zip(scores, seen)]
    weights = [(1 - spread) + spread * value for value in scaled]
    all_that_can_be_spent = math.fsum(f for f, w in zip(frequency, weights) if w > 0)
    if all_that_can_be_spent < budget:  # spread 1: the types of weight 0 carry the rest
        rest = (budget - all_that_can_be_spent) / (1 - all_that_can_be_spent)
        return [1.0 if w > 0 else rest for w in weights]
    smallest, largest = 1e-20, 1e18
    for _ in range(300):
        c = math.sqrt(smallest * largest)
        if math.fsum(f * min(1.0, c * w) for f, w in zip(frequency, weights)) < budget:
            smallest = c
        else:
            largest = c
    return [min(1.0, largest * w) for w in weights]


def random_case(draw: random.Random):
    """Scores with ties, outliers, all equal; some, one or no type seen; uneven frequencies."""
    size = draw.choice([1, 2, 3, 10, 40])
    kind = draw.choice(["normal", "ties", "outlier", "equal", "heavy"])
    one_score = {"normal": lambda: draw.gauss(0, 1),
                 "ties": lambda: float(draw.randint(-1, 1)),
                 "outlier": lambda: draw.gauss(0, 1) * 10 ** draw.choice([0, 0, 0, 6]),
                 "equal": lambda: 0.7,
                 "heavy": lambda: draw.paretovariate(0.5)}[kind]
    scores = [one_score() for _ in range(size)]
    share_seen = draw.choice([0.0, 0.5, 0.9, 1.0])
    seen = [draw.random() < share_seen for _ in range(size)]
    frequency = [draw.random() ** draw.choice([1, 6]) for _ in range(size)]
    if size > 2 and draw.random() < 0.3:
        frequency[draw.randrange(size)] = 0.0
    total = math.fsum(frequency)
    return scores, seen, [f / total for f in frequency]


@pytest.mark.parametrize("budget, spread", GRID)
def test_calibration_meets_the_budget_keeps_the_order_and_equals_brute_force(budget, spread):
    draw = random.Random(f"{budget} {spread}")
    for _ in range(100):
        scores, seen, frequency = random_case(draw)
        rates = typhoon.calibrate(
            torch.tensor(scores, dtype=torch.float64), torch.tensor(seen),
            torch.tensor(frequency, dtype=torch.float64), budget, spread).tolist()
        assert all(0 <= rate <= 1 for rate in rates)
        spent = math.fsum(f * rate for f, rate in zip(frequency, rates))
        assert spent == pytest.approx(budget, abs=1e-9)
        by_score = sorted((score, rate) for score, rate, known in zip(scores, rates, seen) if known)
        assert all(above[1] >= below[1] - 1e-12 for below, above in zip(by_score, by_score[1:]))
        expected = calibrate_by_bisection(scores, seen, frequency, budget, spread)
        assert rates == pytest.approx(expected, abs=1e-6)


def test_calibration_at_the_size_of_a_real_vocabulary():
    torch.manual_seed(0)
    frequency = torch.rand(30522, dtype=torch.float64) ** 8
    frequency /= frequency.sum()
    scores = torch.randn(30522)
    seen = torch.rand(30522) < 0.2
    for budget, spread in GRID:
        rates = typhoon.calibrate(scores, seen, frequency, budget, spread)
        assert (frequency @ rates).item() == pytest.approx(budget, abs=1e-9)
        assert 0 <= rates.min() and rates.max() <= 1


@pytest.mark.parametrize("budget, spread", [
    (0, 0.4), (1, 0.4), (float("nan"), 0.4), (0.3, -0.1), (0.3, 1.1), (0.3, None)])
def test_calibration_refuses_what_is_out_of_range(budget, spread):
    with pytest.raises(ValueError, match="must lie"):
        typhoon.calibrate(torch.zeros(2), torch.ones(2).bool(), torch.ones(2) / 2, budget, spread)


# ---- KL -----------------------------------------------------------------------------------------

def test_kl_by_hand():
    half = torch.tensor([0.5, 0.5])
    uniform = torch.tensor([0.3, 0.3])
    certain = torch.tensor([0.0, 1.0])
    assert typhoon.kl_from_uniform(uniform, half, 0.3) == pytest.approx(0, abs=1e-8)
    assert typhoon.kl_from_uniform(certain, half, 0.5) == pytest.approx(math.log(2))


def test_kl_equals_the_sum_written_out():
    draw = random.Random(0)
    for _ in range(50):
        rates = [draw.random() for _ in range(20)]
        weights = [draw.random() for _ in range(20)]
        frequency = [weight / sum(weights) for weight in weights]
        p = draw.uniform(0.05, 0.95)
        direct = sum(f * (r * math.log(r / p) + (1 - r) * math.log((1 - r) / (1 - p)))
                     for f, r in zip(frequency, rates))
        rates, frequency = torch.tensor(rates).double(), torch.tensor(frequency).double()
        assert typhoon.kl_from_uniform(rates, frequency, p) == pytest.approx(direct, rel=1e-6)


# ---- Selection ----------------------------------------------------------------------------------

V = 50


def typical_batch():
    """ids, words (32, 40) of [CLS], words of one to three pieces, padding; and the frequencies."""
    draw = random.Random(0)
    ids = torch.zeros(32, 40, dtype=torch.long)
    words = torch.full((32, 40), -1)
    for row in range(32):
        end = draw.randint(10, 38)
        position, word = 1, 0
        while position < end:
            for _ in range(min(draw.randint(1, 3), end - position)):
                ids[row, position] = draw.randint(5, V - 1)
                words[row, position] = word
                position += 1
            word += 1
    frequency = torch.bincount(ids[words >= 0], minlength=V).double()
    return ids, words, frequency / frequency.sum()


def masker_with_scores(name: str, budget: float, spread: float):
    ids, words, frequency = typical_batch()
    masker = typhoon.MASKERS[name](frequency, budget, spread, 0.8)
    torch.manual_seed(1)
    selected = torch.rand(ids.shape) < 0.5
    masker.observe(torch.randn(*ids.shape, 8), torch.randn(V, 8), ids, words, selected)
    return masker


@pytest.mark.parametrize("name", typhoon.MASKERS)
@pytest.mark.parametrize("budget", [0.15, 0.3, 0.8])
def test_the_budget_is_met_and_special_tokens_are_never_selected(name, budget):
    ids, words, _ = typical_batch()
    masker = masker_with_scores(name, budget, spread=0.9)
    generator = torch.Generator().manual_seed(0)
    fractions = []
    for _ in range(400):
        selected = masker.select(ids, words, generator)
        assert not (selected & (words < 0)).any()
        fractions.append((selected.sum() / (words >= 0).sum()).item())
    fractions = torch.tensor(fractions)
    standard_error = fractions.std().item() / 400 ** 0.5
    assert abs(fractions.mean().item() - budget) < 4 * standard_error


def test_each_type_is_selected_at_its_own_rate():
    ids, words, _ = typical_batch()
    masker = masker_with_scores("typhoon", 0.3, spread=1.0)
    rates = masker.rates()
    assert rates.std() > 0.05
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(V)
    for _ in range(600):
        counts += torch.bincount(ids[masker.select(ids, words, generator)], minlength=V)
    tries = 600 * torch.bincount(ids[words >= 0], minlength=V)
    for v in tries.nonzero().flatten().tolist():
        deviation = (tries[v] * rates[v] * (1 - rates[v])).sqrt().item()
        assert abs(counts[v] - tries[v] * rates[v]).item() <= 4.5 * deviation + 1e-9


def test_whole_words_are_selected_whole_and_independently():
    ids, words, frequency = typical_batch()
    masker = typhoon.WholeWordMasker(frequency, 0.3, None, 0.8)
    generator = torch.Generator().manual_seed(0)
    both = neighbours = 0
    for _ in range(100):
        selected = masker.select(ids, words, generator)
        for row in range(len(ids)):
            drawn = []
            for word in range(words[row].max() + 1):
                pieces = selected[row, words[row] == word]
                assert pieces.all() or not pieces.any()
                drawn.append(bool(pieces[0]))
            neighbours += len(drawn) // 2
            both += sum(a and b for a, b in zip(drawn[0::2], drawn[1::2]))
    assert abs(both / neighbours - 0.09) < 4 * (0.09 * 0.91 / neighbours) ** 0.5  # 0.3 x 0.3


def test_words_of_two_texts_with_one_index_are_two_words():
    """Word indices start again in the second text; the [SEP] between them ends the run."""
    words = torch.tensor([[-1, 0, 0, -1, 0, 0, -1]])
    masker = typhoon.WholeWordMasker(torch.ones(1).double(), 0.5, None, 0.8)
    drawn = set()
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        selected = masker.select(torch.zeros_like(words), words, generator)
        drawn.add(tuple(selected[0, [1, 2, 4, 5]].tolist()))
    assert drawn == {(a, a, b, b) for a in (False, True) for b in (False, True)}


@pytest.mark.parametrize("name", typhoon.MASKERS)
def test_a_batch_without_maskable_positions_is_harmless(name):
    ids = torch.zeros(2, 3, dtype=torch.long)
    words = torch.full((2, 3), -1)
    masker = typhoon.MASKERS[name](torch.tensor([0.5, 0.5]).double(), 0.3, 0.4, 0.8)
    selected = masker.select(ids, words, torch.Generator().manual_seed(0))
    assert not selected.any()
    masker.observe(torch.randn(2, 3, 4), torch.randn(2, 4), ids, words, selected)
    assert masker.rates().tolist() == pytest.approx([0.3, 0.3])


# ---- Corruption ---------------------------------------------------------------------------------

def test_corruption_by_its_shares():
    ids = torch.full((100, 200), 7)
    selected = torch.zeros(100, 200, dtype=torch.bool)
    selected[:, :100] = True
    generator = torch.Generator().manual_seed(0)

    masked = typhoon.corrupt(ids, selected, 4, 1000, "mask", generator)
    assert (masked[selected] == 4).all() and (masked[~selected] == 7).all()

    mixed = typhoon.corrupt(ids, selected, 4, 1000, "80-10-10", generator)
    assert (mixed[~selected] == 7).all()
    assert (mixed[selected] == 4).double().mean() == pytest.approx(0.8, abs=0.02)
    assert (mixed[selected] == 7).double().mean() == pytest.approx(0.1, abs=0.015)
    drawn = mixed[selected].unique()  # the random tenth is spread over the vocabulary
    assert len(drawn) > 500 and drawn.max() < 1000
