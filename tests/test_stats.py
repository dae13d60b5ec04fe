"""stats.py: one comparison by hand and against other libraries, then made-up logs of every kind."""
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
from scipy.stats import ttest_rel

import stats

GOLDEN = Path(__file__).parent / "golden"


# ---- One comparison ----------------------------------------------------------------------------

def test_a_paired_comparison_by_hand():
    """Typhoon was ahead by 1, 2, 3, 4 and 5 points in five seeds."""
    row = stats.paired_test([[0.01, 0.02, 0.03, 0.04, 0.05]], margin=0.02, alpha=0.05)

    mean = 0.03
    deviation = math.sqrt((0.02 ** 2 + 0.01 ** 2 + 0 + 0.01 ** 2 + 0.02 ** 2) / 4)  # n - 1 = 4
    error = deviation / math.sqrt(5)
    assert row["mean"] == pytest.approx(mean)
    assert row["sd"] == pytest.approx(deviation)
    assert row["t"] == pytest.approx(mean / error)
    assert (row["n"], row["ahead"], row["degrees_of_freedom"]) == (5, 5, 4)

    of_the_table = 2.776445  # Student's t, 4 degrees of freedom, 97.5%
    assert row["low"] == pytest.approx(mean - of_the_table * error, abs=1e-8)
    assert row["high"] == pytest.approx(mean + of_the_table * error, abs=1e-8)
    assert row["p"] == pytest.approx(0.013236, abs=1e-6)  # of t = 4.2426
    assert row["tost_p"] > 0.5  # the mean itself lies outside the margin


def test_it_is_scipys_paired_t_test():
    treatment = [0.81, 0.79, 0.84, 0.80, 0.83]
    baseline = [0.80, 0.80, 0.81, 0.79, 0.84]
    expected = ttest_rel(treatment, baseline)
    row = stats.paired_test([np.subtract(treatment, baseline)], margin=0.01, alpha=0.1)
    low, high = expected.confidence_interval(0.9)
    assert (row["t"], row["p"]) == pytest.approx((expected.statistic, expected.pvalue))
    assert (row["low"], row["high"]) == pytest.approx((low, high))


def test_pooling_lets_each_backbone_have_its_own_mean():
    """Two backbones, means .02 and -.01: the distance of the means is no noise."""
    strata = [[0.01, 0.02, 0.03], [-0.02, -0.01, -0.01, 0.0]]
    row = stats.paired_test(strata, margin=0.01, alpha=0.05)
    squares = (0.01 ** 2 + 0.01 ** 2) + (0.01 ** 2 + 0.01 ** 2)
    deviation = math.sqrt(squares / (7 - 2))
    assert row["mean"] == pytest.approx((0.02 - 0.01) / 2)
    assert row["sd"] == pytest.approx(deviation)
    error = deviation * math.sqrt(1 / 3 + 1 / 4) / 2  # of the mean of two means
    assert row["t"] == pytest.approx(0.005 / error)
    assert (row["n"], row["ahead"], row["degrees_of_freedom"]) == (7, 3, 5)


@pytest.fixture(scope="module")
def golden():
    return json.loads((GOLDEN / "stats.json").read_text())


def test_figures_equal_pingouin_and_statsmodels(golden):
    """Pooled rows: a linear model with one mean for each backbone; seeds: counted up one by one."""
    assert len(golden["samples"]) >= 80 and len(golden["pooled"]) >= 30
    for sample in golden["samples"]:
        sample["strata"] = [np.subtract(sample["treatment"], sample["baseline"])]
    for sample in golden["samples"] + golden["pooled"]:
        row = stats.paired_test(sample["strata"], sample["margin"], sample["alpha"])
        for key, expected in sample["expected"].items():
            # scipy 1.11's quantiles of t are good to 1e-8, later ones to rounding.
            assert row[key] == pytest.approx(expected, rel=1e-7, abs=1e-12), (key, sample)


def enumerated_wilcoxon(differences):
    """The definition: all 2^n flips of the signs, with mean ranks of the differences not zero."""
    differences = [d for d in differences if d]
    sizes = [abs(d) for d in differences]
    doubled = [2 * sum(other < size for other in sizes) + sizes.count(size) + 1 for size in sizes]
    positive = sum(rank for rank, d in zip(doubled, differences) if d > 0)
    smaller = min(positive, sum(doubled) - positive)
    flips = [sum(itertools.compress(doubled, signs))
             for signs in itertools.product((0, 1), repeat=len(doubled))]
    p = 2 * sum(flip <= smaller for flip in flips) / len(flips)
    return {"wilcoxon": smaller / 2, "wilcoxon_p": min(1, p)}


def test_wilcoxon_equals_enumeration_with_ties_and_zeros(golden):
    random = np.random.default_rng(0)
    for _ in range(100):
        whole = random.integers(-4, 5, random.integers(1, 10)).tolist()  # many ties and zeros
        assert stats.exact_wilcoxon(whole) == pytest.approx(enumerated_wilcoxon(whole))
    for sample in golden["samples"]:
        differences = np.round(np.subtract(sample["treatment"], sample["baseline"]), 12)
        assert stats.exact_wilcoxon(differences) == pytest.approx(sample["wilcoxon"], rel=1e-9)


def test_holm_by_hand_and_equal_to_statsmodels(golden):
    assert stats.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])  # 3 x .01, 2 x .03
    assert stats.holm([]) == []
    for case in golden["holm"]:
        assert stats.holm(case["p_values"]) == pytest.approx(case["holm"], rel=1e-12)


def share_found(true_difference, n, number=40_000):
    """How often a t test at 5% finds it, when differences vary by .01."""
    sample = np.random.default_rng(1).normal(true_difference, 0.01, (number, n))
    t = sample.mean(1) / (sample.std(1, ddof=1) / math.sqrt(n))
    return np.mean(abs(t) > {5: 2.776445, 8: 2.364624}[n])


def test_the_detectable_difference_is_found_in_80_percent_of_studies():
    for n in (5, 8):
        sample = np.arange(n) - (n - 1) / 2
        sample *= 0.01 / sample.std(ddof=1)
        row = stats.paired_test([sample], margin=0.01, alpha=0.05)
        assert share_found(row["detectable"], n) == pytest.approx(0.8, abs=0.01)
        again = stats.paired_test([sample], margin=row["detectable"] * 1.0001, alpha=0.05)
        assert again["seeds_needed"] == n


def test_findings():
    """(mean, p, p of the equivalence test) in a word."""
    assert stats.finding(+0.05, 0.01, 0.99, alpha=0.05) == "better"
    assert stats.finding(-0.05, 0.01, 0.99, alpha=0.05) == "worse"
    assert stats.finding(+0.002, 0.01, 0.01, alpha=0.05) == "small gain"
    assert stats.finding(-0.002, 0.01, 0.01, alpha=0.05) == "small loss"
    assert stats.finding(+0.002, 0.60, 0.01, alpha=0.05) == "equivalent"
    assert stats.finding(+0.002, 0.60, 0.30, alpha=0.05) == "undecided"


def test_without_a_variance_there_is_no_test():
    one_pair = stats.paired_test([[0.02]], 0.01, 0.05)
    assert one_pair == {"n": 1, "ahead": 1, "mean": 0.02, "p": None, "finding": "no test"}
    all_equal = stats.paired_test([[0.02, 0.02], [0.01]], 0.01, 0.05)
    assert all_equal["mean"] == pytest.approx(0.015)
    assert all_equal["p"] is None and all_equal["finding"] == "no test"


# ---- Logs --------------------------------------------------------------------------------------

def noise(*key):
    """A number in [-1, 1) that depends only on the key: made-up logs are the same everywhere."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2 ** 47 - 1


EFFECT = {("mrpc", "tinybert", "typhoon"): 0.03, ("mrpc", "distilbert", "typhoon"): -0.03,
          ("cola", "tinybert", "typhoon"): 0.004, ("cola", "bert-base", "typhoon"): 0.01}
SCATTER = {("mrpc", "bert-base"): 0.02, ("cola", "tinybert"): 0.0004, ("cola", "bert-base"): 0.03}


def run_log(task="mrpc", model="tinybert", masker="typhoon", seed=0, spread=0.4, objective="mlm",
            corruption="mask", mlm_epochs=2, score=None, ranks=False, by_type=True):
    """A log as train.py writes it, with made-up figures; best is epoch 2, `score` its metric."""
    uniform = masker in ("random", "whole-word")
    spread = None if uniform else spread
    name = f"{task}-{model}-{masker}-{objective}"
    name += f"-seed{seed}" if uniform else f"-spread{spread:g}-seed{seed}"

    ability = EFFECT.get((task, model, masker), 0) + 0.01 * noise(task, model, seed)
    scatter = SCATTER.get((task, model), 0.003)
    scores = [round(base + ability + scatter * noise(task, model, masker, seed, epoch), 6)
              for epoch, base in ((1, 0.75), (2, 0.80), (3, 0.82))]
    if score is not None:
        scores[1] = score

    kl = 0.0 if uniform else spread ** 2 * (1e-3 + 2e-4 * noise(name, "kl"))
    width = 0 if uniform else 0.02 * spread
    quantiles = ("lowest", "5%", "25%", "50%", "75%", "95%", "highest")
    steps = (-5, -1, -0.5, 0.25, 0.5, 1, 4)
    band = {quantile: 0.3 + step * width for quantile, step in zip(quantiles, steps)}
    rates = {f"word{i}": 0.3 + width * noise(name, i) for i in range(20)}
    if not by_type:
        kl, band, rates = None, None, {}

    layers = [100 + seed, 110 + seed, 120 + seed]
    learnt = [rank + 40 for rank in layers] if objective == "mae" else layers
    return {
        "format": "typhoon-run-2", "run": name, "sample": False,
        "identity": {
            "task": task, "model": model, "masker": masker, "objective": objective,
            "spread": spread, "seed": seed, "budget": 0.3, "ema": 0.8, "corruption": corruption,
            "decoder_layers": 4 if objective == "mae" else None,
            "mlm_epochs": mlm_epochs, "mlm_lr": 1e-4,
            "cls_epochs": 3, "cls_lr": 5e-5, "clip": 1.0, "warmup": 0.0, "batch_size": 16,
            "max_length": 128, "effective_rank": ranks, "device": "cpu", "precision": "fp32",
            "data": {f"{task}/train.tsv": f"{task} train", f"{task}/dev.tsv": f"{task} dev"},
            "backbone": {"config.json": f"{model} config"}, "method": f"{masker} source"},
        "metric": {"mrpc": "f1", "cola": "matthews"}[task],
        "train_examples": 3668, "dev_examples": 408, "parameters": 1,
        "maskable_tokens": 190000, "newly_initialised": [],
        "environment": {"python": "3.11.0", "torch": "2.0", "device": "x86_64", "threads": 1},
        "mlm": {
            "epochs": [
                {"epoch": epoch, "train_loss": 2.0, "dev_loss": 3.0 if objective == "mae" else 2.5,
                 "masked_fraction": 0.3, "kl_mean": kl and 2 * kl, "kl_last": kl,
                 "seen_mean": 1.0, "seen_last": 1.0, "band": band, "mean_deviation": width / 3,
                 "most_masked": [], "least_masked": [], "notices": []} for epoch in (1, 2)],
            "frequent_rates": rates, "best_epoch": 2, "last_epoch": 2},
        "classifier": {
            "epochs": [
                {"epoch": epoch, "train_loss": 0.5, "dev_loss": 0.5, "accuracy": value - 0.05,
                 "f1": value, "matthews": value - 0.5 if task == "mrpc" else value,
                 "predictions": "0110"} for epoch, value in enumerate(scores, 1)],
            "best_epoch": 2, "last_epoch": 3},
        "effective_rank": [
            {"stage": stage, "input": given, "tokens": tokens,
             "layers": layers if stage == "before" else learnt}
            for stage in ("before", "adapted", "fine-tuned")
            for given, tokens in (("masked", "[MASK]"), ("masked", "real"), ("unmasked", "all"))
            if ranks],
        "seconds": 2.0}


def write(directory, logs):
    directory.mkdir(exist_ok=True)
    for log in logs:
        (directory / f"{log['run']}.json").write_text(json.dumps(log))
    return directory


def of_three_maskers(seeds=range(5), **setting):
    return [run_log(masker=masker, seed=seed, **setting)
            for masker in ("random", "whole-word", "typhoon") for seed in seeds]


def output(capsys, *arguments):
    """What `python stats.py ARGUMENTS` prints; it must succeed."""
    assert stats.main([str(argument) for argument in arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and not re.search(r"\bnan\b", printed.out)
    return printed.out


def numbers(capsys, *arguments):
    return json.loads(output(capsys, *arguments, "--format", "json"))


def chosen(rows, **values):
    return [row for row in rows if row | values == row]


@pytest.fixture(scope="module")
def ninety(tmp_path_factory):
    """The paper's grid: 2 tasks, 3 backbones, 3 maskers, 5 seeds."""
    logs = [log for task in ("mrpc", "cola") for model in ("tinybert", "distilbert", "bert-base")
            for log in of_three_maskers(task=task, model=model)]
    assert len(logs) == 90
    return write(tmp_path_factory.mktemp("synthetic") / "runs", logs)


def test_ninety_runs_as_text(ninety, capsys):
    text = output(capsys, ninety)
    assert text == (GOLDEN / "stats_synthetic_90_runs.txt").read_text()
    assert max(map(len, text.splitlines())) <= 100
    for finding in ("better", "worse", "small gain", "equivalent", "undecided"):
        assert f"  {finding}\n" in text


def test_the_twelve_comparisons_are_paired_by_seed(ninety, capsys):
    rows = chosen(numbers(capsys, ninety)["comparisons"], kind="each")
    assert len(rows) == 12
    for row in rows:
        axes = {"task": row["task"], "model": row["model"]}
        metric = {"mrpc": "f1", "cola": "matthews"}[row["task"]]
        differences = []
        for seed in range(5):
            treated, other = [
                run_log(masker=masker, seed=seed, **axes)["classifier"]["epochs"][1][metric]
                for masker in ("typhoon", row["baseline"])]
            differences.append(treated - other)
        assert list(row["differences"].values()) == pytest.approx(differences)
        assert row["mean"] == pytest.approx(np.mean(differences))
        assert row["sd"] == pytest.approx(np.std(differences, ddof=1))
    for key in ("p", "tost_p"):
        assert [row[f"{key}_holm"] for row in rows] == stats.holm([row[key] for row in rows])


def test_one_sentence_over_all(ninety, capsys):
    report = numbers(capsys, ninety, "--margin", "0.005")
    rows = chosen(report["comparisons"], kind="each")
    significant = sum(row["p"] < 0.05 for row in rows)
    adjusted = sum(row["p_holm"] < 0.05 for row in rows)
    zero = sum(row["low"] < 0 < row["high"] for row in rows)
    equivalent = sum(row["finding"] in ("equivalent", "small gain") for row in rows)
    assert significant > adjusted > 0  # Holm takes something back, here
    assert sum(row["tost_p"] < 0.05 for row in rows) > equivalent > 0  # and here
    assert report["notes"][1:] == [
        "objective mlm, spread 0.4, corruption mask, mlm_epochs 2: "
        f"{significant} of 12 comparisons significant "
        f"(after Holm: {adjusted}), {zero} intervals contain zero, "
        f"{equivalent} shown equivalent within 0.005."]


def test_the_best_baseline_is_the_one_with_the_higher_mean(ninety, capsys):
    report = numbers(capsys, ninety)
    best = chosen(report["comparisons"], kind="best")
    assert len(best) == 6
    for row in best:
        axes = {"task": row["task"], "model": row["model"]}
        means = {masker: chosen(report["scores"], masker=masker, **axes)[0]["score"]
                 for masker in ("random", "whole-word", "typhoon")}
        highest = max(means["random"], means["whole-word"])
        assert row["baseline"] == "best of 2"
        assert row["mean"] == pytest.approx(means["typhoon"] - highest)
        assert row["p_holm"] is None and row["finding"] is None  # it is no test more


def test_pooled_rows_have_the_seeds_of_all_backbones(ninety, capsys):
    rows = numbers(capsys, ninety)["comparisons"]
    pooled = chosen(rows, kind="pooled")
    assert [(row["task"], row["baseline"], row["n"]) for row in pooled] == [
        ("cola", "random", 15), ("cola", "whole-word", 15),
        ("mrpc", "random", 15), ("mrpc", "whole-word", 15)]
    for row in pooled:
        each = chosen(rows, kind="each", task=row["task"], baseline=row["baseline"])
        assert row["mean"] == pytest.approx(np.mean([one["mean"] for one in each]))
        assert row["degrees_of_freedom"] == 12
        assert row["ahead"] == sum(one["ahead"] for one in each)
    assert [row["p_holm"] for row in pooled] == stats.holm([row["p"] for row in pooled])


def test_the_luck_of_one_seed(tmp_path, capsys):
    scores = {"random": (0.80, 0.80, 0.80), "typhoon": (0.79, 0.82, 0.805)}
    logs = [run_log(masker=masker, seed=seed, score=score)
            for masker in scores for seed, score in enumerate(scores[masker])]
    text = output(capsys, write(tmp_path / "runs", logs), "--baseline", "random")
    luck = " ".join(text[text.index("Table 3."):].split())
    assert re.search(r" random 3 -0\.0100 \+0\.0200 \d+ With one seed one might have", luck)
    assert "MRPC F1 .777 / .825 / .850" in luck  # the 2023 code's


# ---- Which runs are pairs ----------------------------------------------------------------------

def test_a_sweep_of_the_spread_does_not_change_the_twelve(ninety, tmp_path, capsys):
    """Holm within one spread; a masker that ignores the spread lends its runs to each of them."""
    before = chosen(numbers(capsys, ninety)["comparisons"], kind="each")
    wide = write(tmp_path / "wide", [run_log(seed=seed, spread=1.0) for seed in range(5)])
    after = numbers(capsys, ninety, wide)
    rows = chosen(after["comparisons"], kind="each")
    assert [row for row in rows if row["spread"] == 0.4] == before
    assert [(row["task"], row["model"], row["baseline"], row["n"]) for row in rows
            if row["spread"] == 1.0] == [("mrpc", "tinybert", "random", 5),
                                         ("mrpc", "tinybert", "whole-word", 5)]
    assert [note[:27] for note in after["notes"][1:]] == [
        "objective mlm, spread 0.4, ", "objective mlm, spread 1.0, "]


def test_only_seeds_with_a_partner_are_compared(tmp_path, capsys):
    logs = [run_log(masker="random", seed=seed) for seed in (0, 1, 2, 7)]
    logs += [run_log(seed=seed) for seed in (0, 1, 2, 3)]
    report = numbers(capsys, write(tmp_path / "runs", logs))
    assert [list(row["differences"]) for row in report["comparisons"]] == [["0", "1", "2"]]


def test_other_maskers_in_either_place(tmp_path, capsys):
    logs = [run_log(masker=masker, seed=seed) for masker in ("rare-word", "typhoon", "random")
            for seed in (0, 1, 2)]
    runs = write(tmp_path / "runs", logs)
    rows = numbers(capsys, runs, "--treatment", "rare-word", "--baseline", "random", "typhoon",
                   "rare-word")["comparisons"]
    assert [(row["baseline"], row["n"]) for row in chosen(rows, kind="each")] == [
        ("random", 3), ("typhoon", 3)]
    lent = numbers(capsys, runs, "--treatment", "random", "--baseline", "typhoon")["comparisons"]
    assert [(row["spread"], row["n"]) for row in lent] == [(0.4, 3)]


@pytest.mark.parametrize("axis, treatment, baseline", [
    ("spread", 1.0, 0.4), ("objective", "mae", "mlm"), ("corruption", "80-10-10", "mask"),
    ("mlm_epochs", 3, 0)])
def test_other_axes_are_compared_in_the_same_way(tmp_path, capsys, axis, treatment, baseline):
    of_value = {treatment: (0.82, 0.85, 0.81), baseline: (0.80, 0.84, 0.82)}
    logs = []
    for value, scores in of_value.items():
        for seed, score in enumerate(scores):
            log = run_log(seed=seed, score=score, **{axis: value})
            logs.append(log | {"run": f"{value}-{seed}"})
    runs = write(tmp_path / "runs", logs)
    rows = numbers(capsys, runs, "--compare", axis)["comparisons"]
    assert [list(row["differences"].values()) for row in rows] == [[0.02, 0.01, -0.01]]
    swapped = numbers(capsys, runs, "--compare", axis, "--treatment", str(baseline),
                      "--baseline", str(treatment))["comparisons"]
    assert swapped[0]["mean"] == -rows[0]["mean"]
    nothing = numbers(capsys, runs, "--compare", axis, "--treatment", "0.7", "--baseline", "0.9")
    assert nothing["comparisons"] == []
    assert f"There is no pair of {axis} 0.7 and 0.9." in nothing["notes"]


def test_the_objectives_are_kept_apart(tmp_path, capsys):
    logs = [run_log(masker=masker, seed=seed, objective=objective) for seed in (0, 1)
            for masker in ("random", "typhoon") for objective in ("mae", "mlm")]
    rows = numbers(capsys, write(tmp_path / "runs", logs), "--baseline", "random")["comparisons"]
    assert [row["objective"] for row in rows] == ["mae", "mlm"]
    assert [row["n"] for row in rows] == [2, 2]


# ---- The other tables --------------------------------------------------------------------------

def test_agreement_by_hand():
    """Ranks 1 2 3 against 1 3 2: Spearman's is 1 - 6 (0 + 1 + 1) / (3 (9 - 1)) = 0.5."""
    one = {"the": 0.29, "of": 0.30, "and": 0.31, "only here": 0.5}
    other = {"the": 0.28, "of": 0.35, "and": 0.32, "only there": 0.1}
    assert stats.agreement([one, other]) == pytest.approx(0.5)
    reversed_one = {"the": 0.31, "of": 0.30, "and": 0.29}  # -1 with one, -0.5 with other
    assert stats.agreement([one, other, reversed_one]) == pytest.approx((0.5 - 1 - 0.5) / 3)
    assert stats.agreement([one]) is None
    assert stats.agreement([{"the": 0.3, "of": 0.3}] * 2) is None  # uniform masking ranks nothing


def test_masking_by_spread(tmp_path, capsys):
    logs = [run_log(seed=seed, spread=spread) for seed in (0, 1) for spread in (0.4, 1.0)]
    logs += [run_log(masker="random", seed=seed) for seed in (0, 1)]
    runs = write(tmp_path / "runs", logs)
    rows = chosen(numbers(capsys, runs)["scores"], masker="typhoon")
    for row, spread in zip(rows, (0.4, 1.0)):
        logs = [run_log(seed=seed, spread=spread) for seed in (0, 1)]
        epochs = [log["mlm"]["epochs"][1] for log in logs]
        assert row["spread"] == spread
        assert row["kl_mean"] == pytest.approx(np.mean([epoch["kl_mean"] for epoch in epochs]))
        assert row["kl_last"] == pytest.approx(np.mean([epoch["kl_last"] for epoch in epochs]))
        assert row["95%"] == pytest.approx(0.3 + 0.02 * spread)
    text = output(capsys, runs)
    assert re.search(r"\ntyphoon +1\.0 +2 +.* 0\.280  0\.305  0\.320", text)
    assert re.search(r"\nrandom +- +2 +.* 0\.300  0\.300  0\.300", text)


def test_a_masker_by_position_and_no_adaptation_show_a_dash(tmp_path, capsys):
    by_position = [run_log(masker="spans", seed=seed, by_type=False) for seed in (0, 1)]
    text = output(capsys, write(tmp_path / "spans", by_position))
    assert re.search(r"\n2  0\.7\d+  0\.0\d+( +-){6}\n", text)
    logs = of_three_maskers([0, 1])
    for log in logs:
        log["mlm"] = {"epochs": [], "frequent_rates": {}, "best_epoch": 0, "last_epoch": 0}
    assert len(numbers(capsys, write(tmp_path / "none", logs))["comparisons"]) == 3


def test_effective_ranks_stand_with_the_dev_losses_of_both_objectives(tmp_path, capsys):
    logs = [run_log(masker="random", seed=seed, objective=objective, ranks=True)
            for seed in (0, 2) for objective in ("mlm", "mae")]
    for log in logs:  # one more epoch, whose model was not kept
        log["mlm"]["epochs"].append(log["mlm"]["epochs"][1] | {"epoch": 3, "dev_loss": 9.0})
        log["mlm"]["last_epoch"] = 3
    text = output(capsys, write(tmp_path / "runs", logs))
    table_4 = text[text.index("Table 4."):]
    rows = [" ".join(line.split()) for line in table_4.splitlines() if " real " in line]
    assert rows == [
        "mae masked real before - 101 111 121",
        "mlm masked real before - 101 111 121",
        "mae masked real adapted 3.00 141 151 161",
        "mlm masked real adapted 2.50 101 111 121",
        "mae masked real fine-tuned - 141 151 161",
        "mlm masked real fine-tuned - 101 111 121"]


def test_a_collapsed_run_is_named_and_counts(tmp_path, capsys):
    logs = of_three_maskers(task="cola")
    for log in logs:
        if log["run"] == "cola-tinybert-typhoon-mlm-spread0.4-seed3":
            log["classifier"]["epochs"][1]["matthews"] = 0.0
    report = numbers(capsys, write(tmp_path / "runs", logs))
    row = chosen(report["comparisons"], kind="each", baseline="random")[0]
    assert row["n"] == 5 and row["mean"] < -0.1 and row["differences"]["3"] < -0.7
    rest = [difference for seed, difference in row["differences"].items() if seed != "3"]
    without = chosen(report["comparisons"], baseline="random *")[0]
    assert without["n"] == 4 and without["mean"] == pytest.approx(np.mean(rest))
    assert without["low"] > row["low"] and without["finding"] is None  # it is no test more
    assert report["notes"][-1].startswith("Collapsed into one class")
    assert report["notes"][-1].endswith(": cola-tinybert-typhoon-mlm-spread0.4-seed3.json")


def test_epoch_margin_and_alpha(ninety, capsys):
    best = numbers(capsys, ninety)
    last = numbers(capsys, ninety, "--epoch", "last")
    for report, epoch in ((best, 2), (last, 3)):
        row = chosen(report["scores"], task="mrpc", model="tinybert", masker="random")[0]
        f1 = [run_log(masker="random", seed=seed)["classifier"]["epochs"][epoch - 1]["f1"]
              for seed in range(5)]
        assert row["score"] == pytest.approx(np.mean(f1))
        assert row["sd"] == pytest.approx(np.std(f1, ddof=1))
    wide = numbers(capsys, ninety, "--margin", "0.5", "--alpha", "0.01")
    assert wide["comparisons"][0]["low"] < best["comparisons"][0]["low"]
    assert {row["finding"] for row in chosen(wide["comparisons"], kind="each")} == {
        "equivalent", "small gain", "small loss"}


# ---- What is said ------------------------------------------------------------------------------

def test_sample_runs_are_marked_at_the_top(tmp_path, capsys):
    runs = write(tmp_path / "runs", [log | {"sample": True} for log in of_three_maskers([0, 1])])
    for style in ("text", "markdown", "latex"):
        assert output(capsys, runs, "--format", style).startswith("SAMPLE: made-up data;")
    assert numbers(capsys, runs)["notes"][0].startswith("SAMPLE")


def test_one_run_alone_is_shown(tmp_path, capsys):
    text = output(capsys, write(tmp_path / "runs", [run_log(seed=3)]))
    assert "Table 1. Scores and masking" in text and "Table 2." not in text
    assert "There is no pair of masker typhoon and random or whole-word." in text


def test_only_the_json_files_of_the_folder_itself_are_read(tmp_path, capsys):
    runs = write(tmp_path / "runs", of_three_maskers([0, 1]))
    for name in ("a.claim", "b.json.part", "README.txt"):
        (runs / name).write_text("{")
    (runs / "below").mkdir()
    (runs / "below" / "d.json").write_text("{")
    files = sorted(runs.glob("mrpc*.json"))
    assert numbers(capsys, runs)["notes"][0].startswith("6 runs")
    assert output(capsys, *reversed(files)) == output(capsys, runs)  # in any order


# ---- What is refused ---------------------------------------------------------------------------

def refusal(capsys, *arguments):
    """The one sentence on stderr."""
    try:
        code = stats.main([str(argument) for argument in arguments])
    except SystemExit as stopped:  # argparse's own way to say it
        code = stopped.code
    printed = capsys.readouterr()
    assert code == 2 and printed.out == ""
    assert printed.err.startswith("stats.py: ") and printed.err.count("\n") == 1
    return printed.err


FREE = {"task", "model", "objective", "masker", "spread", "seed"}


@pytest.mark.parametrize("option", sorted(run_log()["identity"].keys() - FREE))
def test_runs_with_other_options_are_no_pairs(tmp_path, capsys, option):
    logs = of_three_maskers([0, 1], objective="mae")
    logs[3]["identity"][option] = "other"
    error = refusal(capsys, write(tmp_path / "runs", logs))
    assert f"differ in {option}" in error and error.count(".json") == 2 and logs[3]["run"] in error


def test_corruption_may_differ_only_where_it_is_compared(tmp_path, capsys):
    logs = [run_log(seed=0), run_log(seed=1, corruption="80-10-10")]
    runs = write(tmp_path / "runs", logs)
    assert "differ in corruption" in refusal(capsys, runs)
    assert len(numbers(capsys, runs, "--compare", "corruption")["scores"]) == 2


def test_what_belongs_to_a_task_a_model_or_a_masker_may_differ_between_them(tmp_path, capsys):
    logs = [run_log(task=task, model=model, masker=masker, objective=objective)
            for task in ("mrpc", "cola") for model in ("tinybert", "bert-base")
            for masker in ("random", "typhoon") for objective in ("mlm", "mae")]
    assert len(numbers(capsys, write(tmp_path / "runs", logs))["scores"]) == 16


def changed(log, *keys_and_value):
    """The log with the value at these keys replaced."""
    *keys, last, value = keys_and_value
    target = log
    for key in keys:
        target = target[key]
    target[last] = value
    return log


@pytest.mark.parametrize("logs, message", [
    ([run_log(), changed(run_log(seed=1), "sample", True)], "differ in sample"),
    ([run_log(), changed(run_log(), "run", "copy")], "are one run"),
    ([changed(run_log(), "format", "typhoon-run-1")], "format is not typhoon-run-2"),
    ([changed(run_log(), "metric", "bleu")], "KeyError: 'bleu'"),
    ([changed(run_log(), "classifier", "best_epoch", 9)], "index out of range"),
    ([changed(run_log(), "classifier", "epochs", 1, "f1", "0.8")], "f1 is '0.8'"),
    ([changed(run_log(), "classifier", "epochs", 1, "f1", math.nan)], "f1 is 'NaN'"),
    ([changed(run_log(), "mlm", "epochs", 1, "kl_last", None)], "kl_last is None"),
    ([changed(run_log(), "mlm", "epochs", 1, "band", {})], "KeyError: '5%'"),
    ([changed(run_log(), "mlm", "frequent_rates", {"the": "x"})], "the is 'x'"),
    ([changed(run_log(ranks=True), "effective_rank", 0, "layers", [1, "x"])], "float: 'x'"),
])
def test_logs_that_are_refused(tmp_path, capsys, logs, message):
    error = refusal(capsys, write(tmp_path / "runs", logs))
    assert message in error and error.count(".json") == len(logs)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"7", b"null", b"\xff\xfe{}", b"{}", b"<html></html>", b"[" * 99999,
    b'{"format": "typhoon-run-2"}'], ids=range(10))
def test_foreign_files_are_refused(tmp_path, capsys, content):
    runs = write(tmp_path / "runs", [run_log()])
    (runs / "foreign.json").write_bytes(content)
    assert "foreign.json" in refusal(capsys, runs)


def test_places_without_logs_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "runs holds no run log" in refusal(capsys)  # the default folder, which is not there
    (tmp_path / "runs").mkdir()
    assert "runs holds no run log" in refusal(capsys)
    (tmp_path / "runs" / "folder.json").mkdir()
    assert "folder.json: is no whole run log" in refusal(capsys)


@pytest.mark.parametrize("arguments", [
    ["--margin", "0"], ["--margin", "nan"],
    ["--alpha", "0"], ["--alpha", "0.5"], ["--alpha", "x"],
    ["--compare", "seed"], ["--format", "html"]])
def test_options_out_of_range_are_refused(ninety, capsys, arguments):
    refusal(capsys, ninety, *arguments)


def test_a_log_that_was_cut_off_is_refused(tmp_path, capsys):
    whole = json.dumps(run_log())
    for length in range(0, len(whole) - 1, 97):
        (tmp_path / "log.json").write_text(whole[:length])
        assert "log.json: is no whole run log" in refusal(capsys, tmp_path)


# ---- Formats and the command -------------------------------------------------------------------

@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """Names that mean something in markdown and LaTeX, and one letter that is not ASCII."""
    logs = [run_log(model=model, masker=masker, seed=seed, ranks=True)
            for model in ("a_b%c d&{\u00e9}", "b") for masker in ("random", "rare_50%")
            for seed in (0, 1, 2)]
    directory = tmp_path_factory.mktemp("awkward")
    for i, log in enumerate(logs):
        text = json.dumps(log, ensure_ascii=False)
        (directory / f"{i}.json").write_text(text, encoding="utf-8")
    return [directory, "--treatment", "rare_50%"]


def test_markdown_has_the_same_number_of_columns_in_every_row(ninety, awkward, capsys):
    for arguments, tables in (([ninety], 3), (awkward, 4)):
        text = output(capsys, *arguments, "--format", "markdown")
        blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
        assert len(blocks) == tables
        for lines in blocks:
            assert len({line.count("|") for line in lines}) == 1
            assert re.fullmatch(r"\|( -+ \|)+", lines[1])


def test_latex_is_balanced_and_escaped(ninety, awkward, capsys):
    for arguments, tables in (([ninety], 3), (awkward, 4)):
        text = output(capsys, *arguments, "--format", "latex")
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == tables
        tabular = r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}"
        for columns, lines in re.findall(tabular, text, re.DOTALL):
            for line in lines.splitlines():
                if line != r"\hline":
                    assert line.endswith(r" \\")
                    assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
        outside = re.sub(r"\$-\$|\\[a-z]+\{[^}]*\}|(?<!\\)&", "", text)
        assert not re.search(r"(?<!\\)[_%$#&]", outside)
        assert not re.search(r"(?<![\w$])-\d", text)  # a minus, not a hyphen
    assert "a\\_b\\%c d\\&\\{\u00e9\\}" in text and r"rare\_50\% minus baseline" in text


def test_json_keeps_everything_and_is_plain(ninety, awkward, capsys):
    for arguments in ([ninety], awkward):
        text = output(capsys, *arguments, "--format", "json")
        report = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
        row = report["comparisons"][0]
        assert {"wilcoxon", "wilcoxon_p", "d_z", "t", "p", "p_holm", "tost_p", "tost_p_holm",
                "detectable", "seeds_needed", "differences"} <= row.keys()


def test_the_command_itself(ninety, root):
    command = [sys.executable, "-W", "error", root / "stats.py"]
    done = subprocess.run([*command, ninety], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "\nTable 1. " in done.stdout
    done = subprocess.run([*command, ninety / "nothing.json"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
