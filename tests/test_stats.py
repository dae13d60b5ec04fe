"""stats.py against pingouin, statsmodels and scipy (golden values), brute force, simulation, and logs of every kind."""
import functools
import hashlib
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

import stats
from glue_data import UserError
from stats import compare_paired, effective_rank, effective_rank_of_second_moment, exact_wilcoxon, holm


GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def golden():
    return json.loads((GOLDEN / "stats.json").read_text())


# ---- One comparison --------------------------------------------------------------------------------------------------

def test_every_field_equals_pingouin_and_statsmodels(golden):
    assert len(golden["samples"]) >= 300 and {s["fields"]["n"] for s in golden["samples"]} == set(range(2, 31))
    fields = set(stats.PairedComparison._fields) - {"dropped", "smallest_p_wilcoxon", "finding"}
    for sample in golden["samples"]:
        ours = compare_paired(sample["treatment"], sample["baseline"], sample["margin"], sample["alpha"])
        assert sample["fields"].keys() == fields
        for field, value in sample["fields"].items():
            assert getattr(ours, field) == pytest.approx(value, rel=1e-9, abs=1e-9), (field, sample)
        assert ours.dropped == 0


def test_holm_equals_statsmodels(golden):
    for case in golden["holm"]:
        assert holm(case["p_values"]) == pytest.approx(case["holm"], rel=1e-12)
    assert holm([0.04, None, 0.01]) == [0.04, None, 0.02] and holm([None]) == [None] and holm([]) == []


def enumerated_wilcoxon(differences):
    """The definition, in whole numbers: all 2^n sign flips of the mid-ranks of the differences that are not zero."""
    differences = [d for d in differences if d]
    doubled = [sum(2 * (abs(e) < abs(d)) + (abs(e) == abs(d)) for e in differences) + 1 for d in differences]
    total = sum(doubled)
    observed = min(s := sum(r for r, d in zip(doubled, differences) if d > 0), total - s)
    flips = [sum(itertools.compress(doubled, signs)) for signs in itertools.product((0, 1), repeat=len(doubled))]
    return observed / 2, min(1, 2 * sum(flip <= observed for flip in flips) / len(flips)), 2 / len(flips)


def test_wilcoxon_equals_enumeration_with_ties_and_zeros():
    random = np.random.default_rng(0)
    for _ in range(150):
        whole = random.integers(-4, 5, random.integers(2, 10)).tolist()  # few values: many ties and zeros
        if any(whole):
            assert exact_wilcoxon(np.array(whole, float)) == pytest.approx(enumerated_wilcoxon(whole), abs=1e-12)
    # The same ties, but as differences of scores, where rounding breaks them: 0.85 - 0.80 is not 0.80 - 0.75.
    baseline, steps = [0.80, 0.12, 0.70, 0.61, 0.09, 0.3], [5, 5, -5, 3, -3, 0]
    ours = compare_paired([b + s / 100 for b, s in zip(baseline, steps)], baseline)
    assert len({abs(b + s / 100 - b) for b, s in zip(baseline, steps)}) > 3  # rounding did break them
    assert (ours.wilcoxon_statistic, ours.p_wilcoxon, ours.smallest_p_wilcoxon) == pytest.approx(
        enumerated_wilcoxon(steps), abs=1e-12)


def test_wilcoxon_equals_scipy_where_scipy_is_exact():
    random = np.random.default_rng(1)
    for n in range(2, 41):
        difference = random.normal(0.3, 1, n)
        statistic, p, _ = exact_wilcoxon(difference)
        expected = scipy.stats.wilcoxon(difference, method="exact")
        assert (statistic, p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)


@pytest.fixture
def simulate(monkeypatch):
    """compare_paired on many samples; the detectable effect depends only on n and alpha, so it is computed once."""
    monkeypatch.setattr(stats, "detectable_effect", functools.cache(stats.detectable_effect))

    def run(n, mean, number=1000, **options):
        random = np.random.default_rng(2)
        baseline = random.normal(0.8, 0.02, (number, n))
        return [compare_paired(b + d, b, **options) for b, d in zip(baseline, random.normal(mean, 0.01, (number, n)))]
    return run


def within_error(share, expected, number):
    return abs(share - expected) < 3.5 * math.sqrt(expected * (1 - expected) / number)


def test_coverage_and_size_under_the_null(simulate):
    for n, alpha in ((5, 0.05), (9, 0.1)):
        results = simulate(n, 0.0, alpha=alpha)
        assert within_error(np.mean([r.ci_low <= 0 <= r.ci_high for r in results]), 1 - alpha, len(results))
        assert within_error(np.mean([r.p_t < alpha for r in results]), alpha, len(results))
        reachable = max(p for p in {r.p_wilcoxon for r in results} | {0} if p <= alpha)  # its p has few values
        assert within_error(np.mean([r.p_wilcoxon <= alpha for r in results]), reachable, len(results)) or not reachable
    assert min(r.p_wilcoxon for r in simulate(5, 0.0)) == 0.0625  # never below, whatever the data


def test_equivalence_is_claimed_wrongly_at_most_alpha_of_the_time(simulate):
    results = simulate(12, 0.01, margin=0.01)  # the true difference is the margin itself
    assert within_error(np.mean([r.tost_p < 0.05 for r in results]), 0.05, len(results))
    assert np.mean([r.tost_p < 0.05 for r in simulate(12, 0.0, margin=0.02)]) > 0.9


def test_the_detectable_difference_is_detected_with_80_percent_power(simulate):
    for n in (3, 8):
        true_difference = stats.detectable_effect(n, 0.05) * 0.01
        assert within_error(np.mean([r.p_t < 0.05 for r in simulate(n, true_difference)]), 0.8, 1000)


def test_detectable_effect_over_the_whole_range():
    for alpha in (0.001, 0.01, 0.05, 0.1, 0.4):  # scipy's noncentral t must not give NaN anywhere on the way
        effects = [stats.detectable_effect(n, alpha) for n in (2, 3, 4, 5, 8, 30, 200)]
        assert effects == sorted(effects, reverse=True) and all(map(math.isfinite, effects))


UNDEFINED = ("ci_low", "ci_high", "t", "degrees_of_freedom", "p_t", "d_z", "minimum_detectable_difference", "tost_p")


def test_all_differences_equal_is_undefined_and_not_nan():
    rounding = compare_paired([0.3, 0.2, 0.9], [0.2, 0.1, 0.8])  # equal but for rounding: not t = 1e16
    assert len({0.3 - 0.2, 0.2 - 0.1, 0.9 - 0.8}) > 1
    for result in (rounding, compare_paired([0.5] * 4, [0.5] * 4), compare_paired([1, 2], [0, 1])):
        assert result.finding == "test undefined: all differences are equal"
        assert all(getattr(result, field) is None for field in UNDEFINED)
        assert result.standard_deviation == 0 and not any(v != v for v in result if v is not None)
    assert rounding.p_wilcoxon == 0.25 and compare_paired([0.5] * 4, [0.5] * 4).p_wilcoxon is None
    tiny = compare_paired([1e-9, 3e-9, 2e-9], [0, 0, 0])  # small scores are not equal scores
    assert tiny.t == pytest.approx(2 * math.sqrt(3))


def test_too_few_pairs_and_nan():
    none, one = compare_paired([], []), compare_paired([0.5], [0.25])
    assert (none.n, none.mean_difference, none.finding) == (0, None, "no test: no pairs")
    assert (one.n, one.mean_difference, one.finding) == (1, 0.25, "no test: one pair")
    assert all(value is None for value in one[3:-1]) and all(value is None for value in none[2:-1])
    with_nan = compare_paired([0.5, math.nan, 0.7, 0.9, math.inf], [0.4, 0.5, 0.65, math.nan, math.inf])
    assert (with_nan.n, with_nan.dropped) == (2, 3)
    assert with_nan[2:] == compare_paired([0.5, 0.7], [0.4, 0.65])[2:]


def test_findings_in_words():
    jitter = np.array([-1e-4, 1e-4, 2e-4, -2e-4, 0, 1e-4])
    base = np.full(6, 0.8)
    assert compare_paired(base + 0.05 + jitter, base).finding == "significantly better"
    assert compare_paired(base - 0.05 + jitter, base).finding == "significantly worse"
    assert compare_paired(base + 0.005 + jitter, base).finding == (
        "significantly better, yet shown to be equivalent within 0.01")
    assert compare_paired(base + 2 * jitter - 3e-5, base).finding == "shown to be equivalent within 0.01"
    assert compare_paired(base + 200 * jitter, base, margin=0.02).finding == (
        "no significant difference (nor equivalence within 0.02)")


@pytest.mark.parametrize("arguments", [
    ([1, 2], [1]), ([[1, 2]], [[1, 2]]), ([1, 2], [1, 3], 0), ([1, 2], [1, 3], -1), ([1, 2], [1, 3], math.nan),
    ([1, 2], [1, 3], 0.1, 0), ([1, 2], [1, 3], 0.1, 0.5)])
def test_compare_paired_refuses(arguments):
    with pytest.raises(ValueError, match="one length, margin above 0 and alpha"):
        compare_paired(*arguments)


# ---- Effective rank --------------------------------------------------------------------------------------------------

def by_definition(matrix, tau=0.9):
    energy = np.linalg.svd(matrix, compute_uv=False) ** 2
    return next(k for k in range(1, len(energy) + 1) if energy[:k].sum() / energy.sum() >= tau)


def test_effective_rank_of_known_matrices():
    random = np.random.default_rng(3)
    for rank in (1, 3, 8):
        left, right = (np.linalg.qr(random.normal(size=(size, rank)))[0] for size in (200, 24))
        equal = left @ right.T  # `rank` equal singular values
        noisy = equal + 1e-4 * random.normal(size=equal.shape)
        assert effective_rank(equal) == effective_rank(noisy) == math.ceil(0.9 * rank)
        assert effective_rank(equal, tau=1.0) == rank
        assert effective_rank_of_second_moment(noisy.T @ noisy) == math.ceil(0.9 * rank)
    for _ in range(50):
        matrix = random.normal(size=(60, 16)) * np.exp(-random.uniform(0, 0.5) * np.arange(16))
        assert effective_rank(matrix) == by_definition(matrix) == effective_rank_of_second_moment(matrix.T @ matrix)
        assert effective_rank(matrix[:5], 0.5) == by_definition(matrix[:5], 0.5)  # fewer rows than columns


def test_effective_rank_at_the_exact_boundary():
    for scale in (1, 0.1, 0.3, 0.7, 1e-9, 1e9):  # 0.1 ** 2 summed nine times is below 0.9 of it summed ten times
        equal = scale * np.eye(10)
        assert effective_rank(equal) == effective_rank_of_second_moment(equal.T @ equal) == 9
    random = np.random.default_rng(4)
    for size, tau, expected in ((10, 0.9, 9), (10, 0.3, 3), (20, 0.95, 19), (30, 0.7, 21), (5, 0.2, 1)):
        for _ in range(20):  # rounding falls to either side
            orthogonal = np.linalg.qr(random.normal(size=(50, size)))[0]
            assert effective_rank(orthogonal, tau) == expected
            assert effective_rank_of_second_moment(orthogonal.T @ orthogonal, tau) == expected
    assert effective_rank(np.diag(np.sqrt([6, 3, 1]))) == 2 and effective_rank(np.diag(np.sqrt([6, 2.99, 1.01]))) == 3


def test_effective_rank_accumulates_and_takes_tensors():
    hidden = torch.randn(300, 12, generator=torch.Generator().manual_seed(0)) @ torch.diag(0.7 ** torch.arange(12))
    moment = sum(batch.double().T @ batch.double() for batch in hidden.split(64))
    assert effective_rank(hidden) == effective_rank(hidden.numpy()) == effective_rank_of_second_moment(moment)
    assert effective_rank(hidden.requires_grad_()) == effective_rank(hidden.detach().bfloat16())
    for nothing in (np.zeros((4, 3)), np.zeros((0, 3)), torch.zeros(0, 3)):
        assert effective_rank(nothing) == 0
    assert effective_rank_of_second_moment(np.zeros((3, 3))) == 0


@pytest.mark.parametrize("matrix, tau", [([[1, math.nan]], 0.9), ([[math.inf, 1]], 0.9), ([1, 2], 0.9), ([[1, 2]], 0),
                                         ([[1, 2]], 1.1), (torch.full((2, 2), math.nan), 0.9)])
def test_effective_rank_refuses(matrix, tau):
    with pytest.raises(ValueError, match="expected a matrix of finite numbers and tau"):
        effective_rank(matrix, tau)


# ---- Logs ------------------------------------------------------------------------------------------------------------

def noise(*key):
    """A number in [-1, 1) that depends only on the key: the synthetic logs are the same on every machine."""
    return int(hashlib.sha256(repr(key).encode()).hexdigest()[:12], 16) / 2 ** 47 - 1


EFFECT = {("mrpc", "tinybert", "typhoon"): 0.03, ("mrpc", "distilbert", "typhoon"): -0.03,
          ("cola", "tinybert", "typhoon"): 0.004, ("cola", "bert-base", "typhoon"): 0.01}
SCATTER = {("mrpc", "bert-base"): 0.02, ("cola", "tinybert"): 0.0004, ("cola", "bert-base"): 0.03}


def synthetic(task="mrpc", model="tinybert", masker="typhoon", seed=0, spread=0.4, objective="mlm", ranks=False):
    """A log as train.py writes it; its figures are made up."""
    name = f"{task}-{model}-{masker}-{objective}-spread{spread:g}-seed{seed}"
    typhoon = masker not in ("random", "whole-word")
    of_seed = EFFECT.get((task, model, masker), 0) + 0.01 * noise(task, model, seed)
    scores = [0.7 + 0.05 * epoch - 0.03 * (epoch == 3) + of_seed
              + SCATTER.get((task, model), 0.003) * noise(task, model, masker, seed, epoch) for epoch in (1, 2, 3)]
    log = {
        "format": "typhoon-run-1", "run": name, "sample": False, "synthetic": "made by tests/test_stats.py",
        "configuration": {
            "task": task, "model": model, "objective": objective, "masker": masker, "spread": spread, "seed": seed,
            "budget": 0.3, "ema": 0.8, "corruption": "mask", "mlm_epochs": 2, "mlm_lr": 1e-4, "cls_epochs": 3,
            "cls_lr": 5e-5, "batch_size": 16, "max_length": 128, "decoder_layers": 4 if objective == "mae" else None,
            "device": "cpu", "precision": "fp32", "effective_rank": ranks},
        "data": {"source": "directory", "files": {f"{task}/train.tsv": {"bytes": 10, "sha256": f"{task} train"},
                                                  f"{task}/dev.tsv": {"bytes": 10, "sha256": f"{task} dev"}},
                 "train_examples": 3668, "dev_examples": 408, "maskable_tokens": 190000},
        "backbone": {"files": {"config.json": {"bytes": 10, "sha256": model}}, "parameters": 1,
                     "newly_initialised": []},
        "environment": {"python": "3.11.0", "torch": "2.0", "numpy": "2.0", "device": "x86_64", "threads": 2},
        "mlm": {"epochs": [{"epoch": epoch, "train_loss": 2.0, "dev_loss": 2.0,
                            "masked_fraction": 0.3 + 0.001 * noise(name, epoch),
                            "kl_per_token": typhoon * spread ** 2 * (5e-3 + 1e-3 * noise(name, "kl")) / epoch}
                           for epoch in (1, 2)], "best_epoch": 2, "last_epoch": 2},
        "classifier": {"epochs": [{"epoch": epoch, "train_loss": 0.5, "dev_loss": 0.5, "accuracy": score - 0.05,
                                   "f1": score, "matthews": score - 0.5} for epoch, score in enumerate(scores, 1)],
                       "best_epoch": 2, "last_epoch": 3},
        "seconds": {"mlm": 1.0, "classifier": 1.0, "total": 2.0}}
    if ranks:
        log["effective_rank"] = [
            {"stage": stage, "input": given, "tokens": tokens,
             "layers": [100 + 10 * i + seed + 40 * (objective == "mae") * (stage != "before") for i in range(3)]}
            for stage in ("before", "adapted", "fine-tuned")
            for given, tokens in (("masked", "[MASK]"), ("masked", "all"), ("masked", "real"), ("unmasked", "all"))]
    return log


def write(directory, *logs):
    directory.mkdir(exist_ok=True)
    for log in logs:
        (directory / f"{log['run']}.json").write_text(json.dumps(log))
    return directory


def logs_of(seeds=range(5), **axes):
    return [synthetic(masker=masker, seed=seed, **axes)
            for masker in ("random", "whole-word", "typhoon") for seed in seeds]


def output(capsys, *arguments):
    """What `python stats.py ARGUMENTS` prints; it must succeed."""
    assert stats.main([str(argument) for argument in arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and not re.search(r"\bnan\b", printed.out)
    return printed.out


def numbers(capsys, *arguments):
    return json.loads(output(capsys, *arguments, "--format", "json"))


@pytest.fixture(scope="module")
def ninety(tmp_path_factory):
    logs = [log for task in ("mrpc", "cola") for model in ("tinybert", "distilbert", "bert-base")
            for log in logs_of(task=task, model=model)]
    assert len(logs) == 90
    return write(tmp_path_factory.mktemp("synthetic") / "runs", *logs)


def test_text_of_ninety_runs_is_stable_to_the_character(ninety, capsys):
    text = output(capsys, ninety)
    assert text == (GOLDEN / "stats_synthetic_90_runs.txt").read_text()
    plot = text[text.index("Intervals of Table 2a"):].splitlines()[:15]
    assert all(re.search(r"(\[.*o|o.*\])", line) for line in plot[3:]) and len(plot) == 15
    assert max(map(len, plot)) <= 80
    zero = {line.index("|") for line in plot[3:] if "|" in line}
    assert len(zero) == 1 and plot[2][zero.pop()] == "0"
    for finding in ("significantly better\n", "significantly worse\n", "  shown to be equivalent",
                    "yet shown to be equivalent", "no significant difference"):
        assert finding in text
    assert "With n = 5 the exact Wilcoxon test cannot reach 0.05: its smallest p is 0.0625." in text


def test_table_2_is_compare_paired_with_holm_over_the_comparisons_shown(ninety, capsys):
    rows = numbers(capsys, ninety)["table_2"]
    assert len(rows) == 12
    for row in rows:
        metric = {"mrpc": "f1", "cola": "matthews"}[row["task"]]
        side = [[synthetic(row["task"], row["model"], masker, seed)["classifier"]["epochs"][1][metric]
                 for seed in range(5)] for masker in ("typhoon", row["baseline"])]
        expected = compare_paired(*side)._asdict()
        assert {field: row[field] for field in expected if field != "finding"} == {
            field: value for field, value in expected.items() if field != "finding"}
    assert [row["p_holm"] for row in rows] == holm([row["p_t"] for row in rows])
    assert [row["tost_p_holm"] for row in rows] == holm([row["tost_p"] for row in rows])
    changed = [row for row in rows if row["finding"] != stats.in_words(
        row["mean_difference"], row["p_t"], row["tost_p"], 0.01, 0.05)]
    assert changed  # a finding that only Holm takes back
    one = numbers(capsys, ninety, "--baseline", "random")["table_2"]
    assert len(one) == 6 and one[0]["p_holm"] == holm([row["p_t"] for row in one])[0]


def test_epoch_margin_alpha_and_other_maskers(ninety, tmp_path, capsys):
    best, last = numbers(capsys, ninety), numbers(capsys, ninety, "--epoch", "last")
    for report, epoch in ((best, 2), (last, 3)):
        row = next(row for row in report["table_1"] if [row["task"], row["model"], row["masker"]]
                   == ["mrpc", "tinybert", "random"])
        figures = [synthetic(masker="random", seed=s)["classifier"]["epochs"][epoch - 1] for s in range(5)]
        assert row["score_n"] == 5 and row["metric"] == "f1"
        assert row["score_mean"] == pytest.approx(np.mean([f["f1"] for f in figures]))
        assert row["score_sd"] == pytest.approx(np.std([f["f1"] for f in figures], ddof=1))
        assert row["accuracy_mean"] == pytest.approx(np.mean([f["accuracy"] for f in figures]))
    wide = numbers(capsys, ninety, "--margin", "0.5", "--alpha", "0.01")
    assert all("equivalent within 0.5" in row["finding"] for row in wide["table_2"])
    assert wide["table_2"][0]["ci_low"] < best["table_2"][0]["ci_low"]
    logs = [synthetic(masker=m, seed=s) for m in ("rare-word", "typhoon") for s in (0, 1, 2)]
    forked = write(tmp_path / "fork", *logs)
    report = numbers(capsys, forked, "--treatment", "rare-word", "--baseline", "typhoon")
    assert [(row["treatment"], row["baseline"], row["n"]) for row in report["table_2"]] == [("rare-word", "typhoon", 3)]
    assert len(report["table_3"]) == 1 and not report["notes"][:-1]


def test_table_3_kl_and_masking_rate_by_spread(tmp_path, capsys):
    logs = [synthetic(seed=s, spread=x) for s in (0, 1) for x in (0.4, 1.0)] + logs_of([0, 1])[:4]
    rows = numbers(capsys, write(tmp_path / "runs", *logs))["table_3"]
    for row, spread in zip(rows, (0.4, 1.0)):
        kept = [synthetic(seed=s, spread=spread)["mlm"]["epochs"][1] for s in (0, 1)]  # the epoch that was kept
        assert row["spread"] == spread
        assert row["kl_per_token_mean"] == pytest.approx(np.mean([k["kl_per_token"] for k in kept]))
        assert row["masked_fraction_mean"] == pytest.approx(np.mean([k["masked_fraction"] for k in kept]))
        assert row["score_n"] == 2 and row["score_mean"] is not None
    assert rows[1]["kl_per_token_mean"] > 5 * rows[0]["kl_per_token_mean"]


def test_effective_rank_table_has_both_objectives_side_by_side(tmp_path, capsys):
    logs = [synthetic(seed=s, objective=o, ranks=True) for s in (0, 1) for o in ("mlm", "mae")]
    rows = numbers(capsys, write(tmp_path / "runs", *logs))["table_4"]
    assert len(rows) == 4 * 3  # conditions x layers
    row = next(r for r in rows if (r["input"], r["tokens"], r["layer"]) == ("masked", "real", 2))
    assert [row["before/mlm"], row["before/mae"], row["adapted/mlm"], row["adapted/mae"]] == [120.5] * 3 + [160.5]
    text = output(capsys, tmp_path / "runs")
    assert re.search(r"mrpc +tinybert +typhoon +0.4 +masked +real +2 +120.5 +120.5 +120.5 +160.5 +120.5 +160.5\n", text)


# ---- What is survived, and said --------------------------------------------------------------------------------------

def test_seeds_missing_on_either_side(tmp_path, capsys):
    logs = [synthetic(masker="random", seed=s) for s in (0, 1, 2, 7)] + [synthetic(seed=s) for s in (0, 1, 2, 3, 4)]
    report = numbers(capsys, write(tmp_path / "runs", *logs))
    assert [(row["baseline"], row["seeds"], row["n"]) for row in report["table_2"]] == [("random", [0, 1, 2], 3)]
    assert "mrpc tinybert mlm: no whole-word run to compare." in report["notes"]
    assert "Comparison 1 has no random run at its spread for seed 3, 4." in report["notes"]
    assert "Comparison 1 has no typhoon run for seed 7." in report["notes"]


def test_a_baseline_that_ignores_the_spread_is_paired_across_spreads(tmp_path, capsys):
    logs = [synthetic(seed=s, spread=x) for s in (0, 1, 2) for x in (0.4, 1.0)]
    logs += [synthetic(masker=m, seed=s) for m in ("random", "other") for s in (0, 1, 2)]
    logs += [synthetic(masker="random", seed=2, spread=0.7)]  # two of seed 2: which one is meant is not clear
    report = numbers(capsys, write(tmp_path / "runs", *logs), "--baseline", "random", "other")
    assert [(r["spread"], r["baseline"], r["seeds"]) for r in report["table_2"]] == [
        (0.4, "random", [0, 1, 2]), (0.4, "other", [0, 1, 2]), (1.0, "random", [0, 1]), (1.0, "other", [])]
    assert "Comparison 3 takes from another spread, which random ignores, its run for seed 0, 1." in report["notes"]
    assert "Comparison 3 has no random run at its spread for seed 2." in report["notes"]
    assert "Comparison 4 has no other run at its spread for seed 0, 1, 2." in report["notes"]
    assert report["table_2"][3]["finding"] == "no test: no pairs"


def test_mlm_and_mae_are_compared_apart_and_may_stand_together(tmp_path, capsys):
    logs = [synthetic(masker=masker, seed=seed, objective=objective)
            for masker in ("random", "typhoon") for seed in (0, 1) for objective in ("mae", "mlm")]
    report = numbers(capsys, write(tmp_path / "runs", *logs), "--baseline", "random")
    assert [(row["objective"], row["n"]) for row in report["table_2"]] == [("mae", 2), ("mlm", 2)]


def test_few_pairs_equal_differences_nan_and_no_adaptation(tmp_path, capsys):
    one = write(tmp_path / "one", *logs_of([0]))
    assert "no test: one pair" in output(capsys, one)
    logs = logs_of([0, 1, 2])
    for log in logs:
        log["classifier"]["epochs"][1]["f1"] = 0.8 + 0.01 * (log["configuration"]["masker"] == "typhoon")
        log["mlm"] = {"epochs": [], "best_epoch": 0, "last_epoch": 0}
    equal = output(capsys, write(tmp_path / "equal", *logs))
    assert equal.count("test undefined: all differences are equal") == 2
    assert re.search(r"Table 3.*\n\n.*\n.*\nmrpc +tinybert +mlm +0.4 +- +- +f1 +3", equal)
    logs = logs_of()
    logs[0]["classifier"]["epochs"][1]["f1"] = logs[0]["classifier"]["epochs"][1]["accuracy"] = math.nan
    report = numbers(capsys, write(tmp_path / "scores", *logs))
    assert [row["n"] for row in report["table_2"]] == [4, 5] and report["table_2"][0]["dropped"] == 1
    assert report["table_1"][0]["score_n"] == 4
    assert any("random-mlm-spread0.4-seed0.json: its score is NaN" in note for note in report["notes"])
    assert "With n = 4 the exact Wilcoxon test cannot reach 0.05: its smallest p is 0.125." in report["notes"]
    logs = logs_of()
    for log in logs:  # two differences of zero for one baseline, none for the other
        if log["configuration"]["seed"] < 2 and log["configuration"]["masker"] != "whole-word":
            log["classifier"]["epochs"][1]["f1"] = 0.8
    assert [note for note in numbers(capsys, write(tmp_path / "zeros", *logs))["notes"] if "Wilcoxon" in note] == [
        "With n = 5 the exact Wilcoxon test cannot reach 0.05: its smallest p is 0.0625.",
        "With n = 5, 2 of them without a difference, the exact Wilcoxon test cannot reach 0.05: its smallest p is 0.25."]


def test_a_model_called_like_a_task_a_repeated_baseline_and_stray_keys(tmp_path, capsys):
    logs = logs_of([0, 1, 2], model="mrpc")
    logs[0]["f1"] = logs[0]["kl_per_token"] = "not read"
    once = numbers(capsys, write(tmp_path / "runs", *logs))
    twice = numbers(capsys, tmp_path / "runs", "--baseline", "random", "typhoon", "random", "whole-word")
    assert len(once["table_2"]) == 2 and once["table_2"] == twice["table_2"]
    logs[1]["data"]["files"] = {"MRPC/train.tsv": {"bytes": 1, "sha256": "other"}}
    assert "differ in the data files of mrpc" in refusal(capsys, write(tmp_path / "other", *logs))


def test_output_that_nobody_takes_ends_with_one_line(ninety, root):
    for redirect in (">/dev/full", "| true"):
        done = subprocess.run(["bash", "-c", f"'{sys.executable}' '{root / 'stats.py'}' '{ninety}' --format json {redirect}; "
                               "echo ${PIPESTATUS[0]}"], capture_output=True, text=True)
        assert "Traceback" not in done.stderr and done.stderr.startswith("stats.py: "), done.stderr


def test_environments_may_differ_and_it_is_said(tmp_path, capsys):
    logs = logs_of([0, 1])
    logs[0]["environment"] |= {"torch": "2.1", "threads": 8}
    del logs[1]["environment"]["device"]
    notes = numbers(capsys, write(tmp_path / "runs", *logs))["notes"]
    assert "Runs differ in torch: 2.1 in 1, 2.0 in 5." in notes
    assert any(note.startswith("Runs differ in threads") for note in notes)
    assert any(note.startswith("Runs differ in device") for note in notes)


def test_sample_runs_are_marked_at_the_top(tmp_path, capsys):
    logs = [log | {"sample": True} for log in logs_of([0, 1])]
    directory = write(tmp_path / "runs", *logs)
    for style in ("text", "markdown", "latex"):
        assert output(capsys, directory, "--format", style).startswith("SAMPLE: these runs are on made-up data")
    assert numbers(capsys, directory)["sample"] is True


def test_only_the_json_files_of_the_directory_itself_are_read(tmp_path, capsys):
    directory = write(tmp_path / "runs", *logs_of([0, 1]))
    for name in ("a.claim", "b.json.part", "._c.json", "README.txt"):
        (directory / name).write_text("{")
    (directory / "below").mkdir()
    (directory / "below" / "d.json").write_text("{")
    everything = numbers(capsys, directory)
    files = sorted(directory.glob("mrpc*.json"))
    assert everything["runs"] == 6 and numbers(capsys, *files) | {"paths": 0} == everything | {"paths": 0}
    assert output(capsys, *reversed(files)) == output(capsys, directory)  # the order given does not matter


# ---- What is refused -------------------------------------------------------------------------------------------------

def refusal(capsys, *arguments):
    assert stats.main([str(argument) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.startswith("stats.py: ")
    return printed.err


def test_options_that_differ_are_refused_by_name_with_both_files(tmp_path, capsys):
    options = [option for option in synthetic()["configuration"] if option not in stats.AXES]
    assert len(options) == 13
    for option in options:
        logs = logs_of([0, 1])
        for log in logs:  # decoder_layers: only MAE-LM has them
            log["configuration"] |= {"objective": "mae", "decoder_layers": 4}
        logs[3]["configuration"][option] = "something else"
        error = refusal(capsys, write(tmp_path / option, *logs))
        assert f"--{option.replace('_', '-')} (" in error and "something else" in error
        assert error.count(".json") == 2 and f"{logs[3]['run']}.json" in error
    lacking = synthetic(seed=1)
    del lacking["configuration"]["budget"]
    assert "--budget (0.3 and None)" in refusal(capsys, write(tmp_path / "lacking", synthetic(), lacking))


def changed(log, **changes):
    """The log with values at dotted__paths replaced."""
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = log
        for key in parents:
            target = target[int(key) if key.isdigit() else key]
        target[last] = value
    return log


@pytest.mark.parametrize("logs, message", [
    ([synthetic(), changed(synthetic(seed=1), data__files={})], "differ in the data files of mrpc"),
    ([synthetic(), changed(synthetic(seed=1), backbone__files={"config.json": 1})], "differ in the files of the model tinybert"),
    ([synthetic(), changed(synthetic(seed=1), sample=True)], "differ in being of the made-up sample (False and True)"),
    ([synthetic(), changed(synthetic(), run="copy")], "are logs of one run"),
    ([changed(synthetic(), format="typhoon-run-2")], "not a run log of train.py"),
    ([changed(synthetic(), classifier__best_epoch=9)], "log.classifier.epochs lacks the best_epoch, 9"),
    ([changed(synthetic(), classifier={"epochs": [], "best_epoch": 0, "last_epoch": 0})], "lacks the best_epoch, 0"),
    ([changed(synthetic(), mlm__best_epoch=7)], "log.mlm.epochs lacks the best_epoch, 7"),
    ([changed(synthetic(), classifier__epochs__1__f1=85.3)], "classifier.epochs[1].f1: expected a number from -1 to 1"),
    ([changed(synthetic(), classifier__epochs__1__f1="0.8")], "found '0.8'"),
    ([changed(synthetic(), classifier__epochs__1__f1=None)], "found nothing"),
    ([changed(synthetic(), classifier__epochs__1__f1=True)], "found True"),
    ([changed(synthetic(), classifier__epochs__1__f1=math.inf)], "found inf"),
    ([changed(synthetic(), mlm__epochs__0__kl_per_token=10 ** 400)], "log.mlm.epochs[0].kl_per_token"),
    ([changed(synthetic(), configuration__spread=math.nan)], "log.configuration.spread: expected a number from 0 to 1"),
    ([changed(synthetic(), configuration__seed=1.5)], "log.configuration.seed: expected int, found 1.5"),
    ([changed(synthetic(), configuration__task=["mrpc"])], "log.configuration.task: expected str"),
    ([changed(synthetic(), configuration=[])], "log.configuration: expected dict"),
    ([changed(synthetic(), environment=None)], "log.environment: expected dict, found nothing"),
    ([changed(synthetic(ranks=True), effective_rank__0__layers=[1, "2"])], "log.effective_rank[0].layers[1]"),
    ([changed(synthetic(ranks=True), effective_rank={})], "log.effective_rank: expected list"),
])
def test_logs_that_are_refused(tmp_path, capsys, logs, message):
    error = refusal(capsys, write(tmp_path / "runs", *logs))
    assert message in error and error.count(".json") == len(logs)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"7", b"null", b"\xff\xfe{}", b"{}", b"<html></html>", b"[" * 99999, b"9" * 9999,
    b'{"format": "typhoon-run-1"}', b'{"format": ["typhoon-run-1"]}'], ids=range(12))
def test_foreign_files_are_refused(tmp_path, capsys, content):
    directory = write(tmp_path / "runs", synthetic())
    (directory / "foreign.json").write_bytes(content)
    assert "foreign.json" in refusal(capsys, directory)


def test_places_without_logs_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "runs cannot be read" in refusal(capsys)  # the default directory, which is not there
    (tmp_path / "runs").mkdir()
    assert "runs holds no run log" in refusal(capsys)
    assert "nothing.json cannot be read" in refusal(capsys, "nothing.json")
    (tmp_path / "runs" / "folder.json").mkdir()
    assert "folder.json cannot be read" in refusal(capsys)
    assert "stats.py: " in refusal(capsys, "x" * 5000)


@pytest.mark.parametrize("arguments", [["--margin", "0"], ["--margin", "nan"], ["--margin", "inf"], ["--alpha", "0"],
                                       ["--alpha", "0.5"], ["--alpha", "nan"]])
def test_options_out_of_range_are_refused(ninety, capsys, arguments):
    assert "--margin must be above 0, --alpha from 0.001" in refusal(capsys, ninety, *arguments)


def test_a_log_damaged_anywhere_ends_in_success_or_one_sentence(tmp_path):
    log, path = synthetic(ranks=True), tmp_path / "log.json"
    whole = json.dumps(changed(log, effective_rank=log["effective_rank"][:1]))
    for length in range(0, len(whole) - 1, 37):
        path.write_text(whole[:length])
        with pytest.raises(UserError):
            stats.read_logs([path])

    def places(value, here=()):  # every key and index of the log
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, below in inside:
            yield (*here, key)
            yield from places(below, (*here, key))

    refused = 0
    for place in list(places(json.loads(whole))):
        for replacement in (None, "text", -3, [[]], {"a": []}, math.nan, ...):  # ...: taken out
            log = json.loads(whole)
            target = functools.reduce(lambda value, key: value[key], place[:-1], log)
            if replacement is ...:
                del target[place[-1]]
            else:
                target[place[-1]] = replacement
            path.write_text(json.dumps(log))
            try:
                logs = stats.read_logs([path])
                stats.summaries(logs, stats.AXES[:5], ("score", "accuracy", "kl_per_token", "masked_fraction"))
                stats.ranks(logs), stats.comparisons(logs, "typhoon", ["random"], 0.01, 0.05, [])
            except UserError:
                refused += 1
    assert refused > 300


# ---- Formats and the command -----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """Names that mean something in markdown and LaTeX, and one that is not ASCII; train.py writes UTF-8."""
    logs = [synthetic(model="a_b%c|d&\u00e9", masker=masker, seed=seed, ranks=True)
            for masker in ("random", "rare_50%") for seed in (0, 1, 2)]
    directory = tmp_path_factory.mktemp("awkward")
    for i, log in enumerate(logs):
        (directory / f"{i}.json").write_text(json.dumps(log, ensure_ascii=False), encoding="utf-8")
    return [directory, "--treatment", "rare_50%"]


def test_markdown_has_the_same_number_of_columns_in_every_row(ninety, awkward, capsys):
    for arguments, tables in (([ninety], 5), (awkward, 6)):
        text = output(capsys, *arguments, "--format", "markdown")
        blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
        assert len(blocks) == tables
        for lines in blocks:
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
            assert re.fullmatch(r"\|( -+:? \|)+", lines[1]) and lines[1].count("-:") >= 1
        fence = text.split("```")
        assert len(fence) == 3 and fence[1].lstrip().startswith("Intervals of Table 2a")


def test_latex_is_balanced_and_escaped(ninety, awkward, capsys):
    for arguments, tables in (([ninety], 5), (awkward, 6)):
        text = output(capsys, *arguments, "--format", "latex")
        assert text.count(r"\begin{table}") == text.count(r"\end{tabular}\end{table}") == tables
        for tabular in re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
            for line in tabular[1].splitlines():
                if line != r"\hline":
                    assert line.endswith(r" \\") and len(re.findall(r"(?<!\\)&", line)) == len(tabular[0]) - 1
        outside = re.sub(r"\$-\$|\\[a-z]+\{[^}]*\}|(?<!\\)&", "", text)
        assert not re.search(r"(?<!\\)[_%$#&]", outside)
        assert not re.search(r"(?<![\w$])-\d", text)  # a minus, not a hyphen
    assert "a\\_b\\%c|d\\&\u00e9" in text and r"\caption{rare\_50\%" in text and r"d\_z" in text


def test_json_is_plain_json(ninety, awkward, capsys):
    for arguments in ([ninety], awkward):
        report = json.loads(output(capsys, *arguments, "--format", "json"),
                            parse_constant=lambda constant: pytest.fail(constant))
        assert {"sample", "runs", "notes", "margin", "alpha", "table_1", "table_2", "table_3"} <= report.keys()


def test_the_command_itself(ninety, root):
    def run(*arguments):
        command = [sys.executable, "-W", "error", root / "stats.py", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    done = run(ninety)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("Table 1. ")
    done = run(ninety / "nothing.json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    heavy = "import sys, stats; print(sorted({'scipy', 'torch'} & set(sys.modules)))"  # --help must not wait for them
    done = subprocess.run([sys.executable, "-c", heavy], cwd=root, capture_output=True, text=True)
    assert done.stdout == "[]\n"
