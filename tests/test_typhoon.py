"""The method against its literal definition: one-hot gradients, brute-force calibration, direct sums, drawn masks."""
import math
import random

import pytest
import torch

import typhoon

GRID = [(budget, spread) for budget in (0.01, 0.15, 0.3, 0.5, 0.9, 0.99) for spread in (0.0, 0.4, 0.9, 1.0)]


# ---- Calibration -----------------------------------------------------------------------------------------------------

def calibrate_by_bisection(scores, seen, frequency, budget, spread):
    """The definition in plain Python floats: find c by halving intervals until sum_v f[v] min(1, c w[v]) = budget."""
    known = [score for score, is_seen in zip(scores, seen) if is_seen]
    if not known or max(known) == min(known):
        return [budget] * len(scores)
    low, high = min(known), max(known)
    weights = [(1 - spread) + spread * ((score - low) / (high - low) if is_seen else 1.0)
               for score, is_seen in zip(scores, seen)]
    spent_by_all_capped = math.fsum(f for f, w in zip(frequency, weights) if w > 0)
    if spent_by_all_capped < budget:  # spread 1: the types of weight 0 must carry the rest, as for spread -> 1
        rest = (budget - spent_by_all_capped) / (1 - spent_by_all_capped)
        return [1.0 if w > 0 else rest for w in weights]
    lowest, highest = 0.0, 1e18
    for _ in range(300):
        c = (lowest * highest) ** 0.5 if lowest > 0 else highest * 1e-3
        if math.fsum(f * min(1.0, c * w) for f, w in zip(frequency, weights)) < budget:
            lowest = c
        else:
            highest = c
        if lowest == 0.0 and highest < 1e-9:
            break
    return [min(1.0, highest * w) for w in weights]


def random_case(generator: random.Random, budget: float, spread: float):
    """Scores with ties, outliers and zeros; some, one or no type seen; frequencies over several orders of magnitude."""
    size = generator.choice([1, 2, 3, 10, 40])
    kind = generator.choice(["normal", "ties", "outlier", "equal", "heavy"])
    scores = {"normal": lambda: generator.gauss(0, 1), "ties": lambda: float(generator.randint(-1, 1)),
              "outlier": lambda: generator.gauss(0, 1) * 10 ** generator.choice([0, 0, 0, 6]),
              "equal": lambda: 0.7, "heavy": lambda: generator.paretovariate(0.5)}[kind]
    scores = [scores() for _ in range(size)]
    some = generator.random()
    seen = {0: [False] * size, 1: [v == 0 for v in range(size)], 2: [generator.random() < some for _ in range(size)],
            3: [True] * size}[generator.randint(0, 3)]
    frequency = [generator.random() ** generator.choice([1, 6]) for _ in range(size)]
    if size > 2 and generator.random() < 0.3:
        frequency[generator.randrange(size)] = 0.0
    total = math.fsum(frequency)
    return scores, seen, [f / total for f in frequency]


@pytest.mark.parametrize("budget, spread", GRID)
def test_calibration_meets_the_budget_keeps_the_order_and_equals_brute_force(budget, spread):
    generator = random.Random(f"{budget} {spread}")
    for _ in range(120):  # 24 x 120 = 2880 score vectors
        scores, seen, frequency = random_case(generator, budget, spread)
        rates = typhoon.calibrate(torch.tensor(scores, dtype=torch.float64), torch.tensor(seen),
                                  torch.tensor(frequency, dtype=torch.float64), budget, spread).tolist()
        assert all(0 <= rate <= 1 for rate in rates)
        assert math.fsum(f * rate for f, rate in zip(frequency, rates)) == pytest.approx(budget, abs=1e-9)
        in_order = sorted((score, rate) for score, rate, is_seen in zip(scores, rates, seen) if is_seen)
        assert all(b[1] >= a[1] - 1e-12 for a, b in zip(in_order, in_order[1:]))
        assert max(rates) <= max([rate for rate, is_seen in zip(rates, seen) if not is_seen] or [1.0]) + 1e-12
        expected = calibrate_by_bisection(scores, seen, frequency, budget, spread)
        assert rates == pytest.approx(expected, abs=1e-6)


def test_calibration_at_the_size_of_a_real_vocabulary():
    torch.manual_seed(0)
    frequency = torch.rand(30522, dtype=torch.float64) ** 8
    frequency /= frequency.sum()
    scores, seen = torch.randn(30522), torch.rand(30522) < 0.2
    for budget, spread in GRID:
        rates = typhoon.calibrate(scores, seen, frequency, budget, spread)
        assert (frequency @ rates).item() == pytest.approx(budget, abs=1e-9)
        assert 0 <= rates.min() and rates.max() <= 1


def test_calibration_by_hand():
    # Weights 0.6, 0.8, 1.0 at frequencies 0.5, 0.25, 0.25: sum f w = 0.75, so c = 0.3 / 0.75 = 0.4.
    scores, frequency = torch.tensor([2.0, 3.0, 4.0]), torch.tensor([0.5, 0.25, 0.25])
    seen = torch.ones(3, dtype=torch.bool)
    assert typhoon.calibrate(scores, seen, frequency, 0.3, 0.4).tolist() == pytest.approx([0.24, 0.32, 0.4])
    # At budget 0.9, c = 1.2 would give 1.2 to the last: it is capped at 1; the others share 0.65, c = 0.65 / 0.5 = 1.3,
    # which takes the second to 1.04: capped too. The first gets (0.9 - 0.5) / 0.5 = 0.8.
    assert typhoon.calibrate(scores, seen, frequency, 0.9, 0.4).tolist() == pytest.approx([0.8, 1.0, 1.0])
    # A type not seen yet is treated as the top score.
    seen = torch.tensor([True, True, False])
    assert typhoon.calibrate(torch.tensor([2.0, 4.0, -9.0]), seen, frequency, 0.3, 0.4).tolist() == pytest.approx(
        [0.18 / 0.8, 0.3 / 0.8, 0.3 / 0.8])


@pytest.mark.parametrize("budget, spread", [(0, 0.4), (1, 0.4), (0.3, -0.1), (0.3, 1.1), (float("nan"), 0.4)])
def test_calibration_refuses_what_is_out_of_range(budget, spread):
    with pytest.raises(ValueError, match="must lie"):
        typhoon.calibrate(torch.zeros(2), torch.ones(2, dtype=torch.bool), torch.tensor([0.5, 0.5]), budget, spread)


@pytest.mark.parametrize("largest", [1e30, 1e308])
def test_calibration_survives_scores_near_the_largest_float(largest):
    rates = typhoon.calibrate(torch.tensor([-largest, 0.0, largest], dtype=torch.float64), torch.ones(3).bool(),
                              torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64), 0.3, 0.4)
    assert rates.tolist() == pytest.approx([0.24, 0.32, 0.4])


# ---- KL --------------------------------------------------------------------------------------------------------------

def test_kl_equals_a_direct_sum():
    generator = random.Random(0)
    for _ in range(50):
        rates = [generator.random() for _ in range(20)]
        weights = [generator.random() for _ in range(20)]
        frequency, p = [w / sum(weights) for w in weights], generator.uniform(0.05, 0.95)
        direct = sum(f * (r * math.log(r / p) + (1 - r) * math.log((1 - r) / (1 - p))) for f, r in zip(frequency, rates))
        assert typhoon.kl_from_uniform(torch.tensor(rates).double(), torch.tensor(frequency).double(), p) == \
            pytest.approx(direct, rel=1e-6)


def test_kl_by_hand():
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert typhoon.kl_from_uniform(torch.full((2,), 0.3), half, 0.3) == pytest.approx(0, abs=1e-8)
    assert typhoon.kl_from_uniform(torch.tensor([0.0, 1.0]), half, 0.5) == pytest.approx(math.log(2))


# ---- Saliency and scores ---------------------------------------------------------------------------------------------

def test_scores_by_hand():
    """Two types over two steps: means of -g over visible and +g over selected positions, then the moving average."""
    frequency = torch.full((4,), 0.25, dtype=torch.float64)
    masker = typhoon.TyphoonMasker(frequency, 0.3, 0.4, 0.8)
    weight = torch.eye(4)  # with E the identity, g[b,t] is the gradient's entry at the true token
    ids = torch.tensor([[0, 1, 1, 2, 2, 3]])
    words = torch.tensor([[-1, 0, 1, 2, 3, -1]])  # types 0 and 3 occur at special positions only
    selected = torch.tensor([[False, False, True, True, True, False]])
    gradient = torch.zeros(1, 6, 4)
    for position, value in enumerate([9.0, 0.5, 2.0, 1.0, 3.0, 9.0]):
        gradient[0, position, ids[0, position]] = value
    masker.observe(gradient, weight, ids, words, selected)
    # Type 1: -0.5 visible, +2 selected. Type 2: no visible position, mean(1, 3) selected.
    assert masker.scores.tolist() == pytest.approx([0, 1.5, 2.0, 0])
    assert masker.seen.tolist() == [False, True, True, False]
    masker.observe(gradient[:, :2], weight, ids[:, :2], words[:, :2], selected[:, :2])  # only type 1, visible: -0.5
    assert masker.scores.tolist() == pytest.approx([0, 0.2 * 1.5 + 0.8 * -0.5, 2.0, 0])


# ---- Selection -------------------------------------------------------------------------------------------------------

def typical_batch(batch_size=32, length=40, vocabulary=50):
    """[CLS] words [SEP] padding; words of one to three pieces."""
    generator = random.Random(0)
    ids, words = torch.zeros(batch_size, length, dtype=torch.long), torch.full((batch_size, length), -1)
    for row in range(batch_size):
        used, word, position = generator.randint(10, length - 2), 0, 1
        while position < used:
            for _ in range(min(generator.randint(1, 3), used - position)):
                ids[row, position], words[row, position] = generator.randint(5, vocabulary - 1), word
                position += 1
            word += 1
    frequency = torch.bincount(ids[words >= 0], minlength=vocabulary).double()
    return ids, words, frequency / frequency.sum()


@pytest.mark.parametrize("name", ["random", "whole-word", "typhoon"])
@pytest.mark.parametrize("budget", [0.15, 0.3, 0.8])
def test_rate_is_the_budget_and_special_tokens_are_never_selected(name, budget):
    ids, words, frequency = typical_batch()
    masker = typhoon.maskers()[name](frequency, budget, 0.9, 0.8)
    if name == "typhoon":
        torch.manual_seed(1)
        masker.observe(torch.randn(*ids.shape, 8), torch.randn(50, 8), ids, words, torch.rand(ids.shape) < 0.5)
        assert masker.rates().std() > 0.01
    generator, draws = torch.Generator().manual_seed(0), 400
    fraction = torch.zeros(draws)
    for draw in range(draws):
        selected = masker.select(ids, words, generator)
        assert not (selected & (words < 0)).any()
        fraction[draw] = selected.sum() / (words >= 0).sum()
    standard_error = fraction.std().item() / draws ** 0.5
    assert abs(fraction.mean().item() - budget) < 4 * standard_error


def test_each_type_is_selected_at_its_own_rate():
    ids, words, frequency = typical_batch()
    masker = typhoon.TyphoonMasker(frequency, 0.3, 1.0, 0.8)
    torch.manual_seed(1)
    masker.observe(torch.randn(*ids.shape, 8), torch.randn(50, 8), ids, words, torch.rand(ids.shape) < 0.5)
    generator, draws = torch.Generator().manual_seed(0), 600
    counts = sum(torch.bincount(ids[masker.select(ids, words, generator)], minlength=50) for _ in range(draws))
    tries = draws * torch.bincount(ids[words >= 0], minlength=50)
    rates = masker.rates()
    for v in tries.nonzero().flatten():
        deviation = (tries[v] * rates[v] * (1 - rates[v])).sqrt().item()
        assert abs(counts[v].item() - (tries[v] * rates[v]).item()) <= 4.5 * deviation + 1e-9


def test_whole_words_are_selected_whole_and_independently():
    ids, words, frequency = typical_batch()
    masker, generator = typhoon.WholeWordMasker(frequency, 0.3, 0.4, 0.8), torch.Generator().manual_seed(0)
    together = torch.zeros(2, 2)
    for _ in range(200):
        selected = masker.select(ids, words, generator)
        for row in range(len(ids)):
            for word in range(int(words[row].max()) + 1):
                assert selected[row, words[row] == word].unique().numel() == 1
        first, second = (selected[:, 1], selected[torch.arange(len(ids)), (words == 1).int().argmax(1)])
        for a, b in zip(first.int(), second.int()):
            together[a, b] += 1
    both, total = together[1, 1] / together.sum(), together.sum().item()
    assert abs(both.item() - 0.09) < 4 * (0.09 * 0.91 / total) ** 0.5  # neighbours: 0.3 x 0.3


def test_words_of_two_texts_with_one_index_are_two_words():
    """Word indices start again in the second text; [SEP] between them ends the run."""
    words = torch.tensor([[-1, 0, 0, -1, 0, 0, -1]])
    ids, masker = torch.zeros_like(words), typhoon.WholeWordMasker(torch.ones(1).double(), 0.5, 0, 0)
    drawn = {tuple(masker.select(ids, words, torch.Generator().manual_seed(seed))[0, [1, 2, 4, 5]].tolist())
             for seed in range(60)}
    assert drawn == {(a, a, b, b) for a in (False, True) for b in (False, True)}


@pytest.mark.parametrize("name", ["random", "whole-word", "typhoon"])
def test_a_batch_without_maskable_or_selected_positions_is_harmless(name):
    ids, words = torch.zeros(2, 3, dtype=torch.long), torch.full((2, 3), -1)
    masker = typhoon.maskers()[name](torch.tensor([0.5, 0.5]).double(), 0.3, 0.4, 0.8)
    selected = masker.select(ids, words, torch.Generator().manual_seed(0))
    assert not selected.any()
    masker.observe(torch.randn(2, 3, 4), torch.randn(2, 4), ids, words, selected)
    assert masker.rates().tolist() == pytest.approx([0.3, 0.3])


# ---- Corruption ------------------------------------------------------------------------------------------------------

def test_corruption_shares():
    ids, selected = torch.full((100, 200), 7), torch.zeros(100, 200, dtype=torch.bool)
    selected[:, :100] = True
    generator = torch.Generator().manual_seed(0)
    masked = typhoon.corrupt(ids, selected, 4, 1000, "mask", generator)
    assert (masked[selected] == 4).all() and (masked[~selected] == 7).all()
    mixed = typhoon.corrupt(ids, selected, 4, 1000, "80-10-10", generator)
    assert (mixed[~selected] == 7).all()
    shares = [(mixed[selected] == 4).double().mean(), (mixed[selected] == 7).double().mean()]
    assert shares[0] == pytest.approx(0.8, abs=0.02) and shares[1] == pytest.approx(0.1, abs=0.015)
    assert len(mixed[selected].unique()) > 500  # the random tenth is spread over the vocabulary


def test_maskers_are_named_after_their_classes():
    assert list(typhoon.maskers())[:3] == ["random", "whole-word", "typhoon"]
