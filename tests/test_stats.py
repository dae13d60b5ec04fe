"""stats.py: one comparison by hand and against other libraries, then made-up logs of every kind."""
import hashlib
import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stats

GOLDEN = Path(__file__).parent / "golden"


# ---- One comparison ----------------------------------------------------------------------------

def test_a_paired_comparison_by_hand():
    """Typhoon was ahead by 1, 2, 3, 4 and 5 points in five seeds."""
    row = stats.paired_test([0.01, 0.02, 0.03, 0.04, 0.05], margin=0.02, alpha=0.05)

    mean = 0.03
    deviation = math.sqrt((0.02 ** 2 + 0.01 ** 2 + 0 + 0.01 ** 2 + 0.02 ** 2) / 4)  # n - 1 = 4
    error = deviation / math.sqrt(5)
    assert row["mean"] == pytest.approx(mean)
    assert row["sd"] == pytest.approx(deviation)
    assert row["t"] == pytest.approx(mean / error)
    assert (row["n"], row["ahead"], row["lowest"], row["highest"]) == (5, 5, 0.01, 0.05)

    of_the_table = 2.776445  # Student's t, 4 degrees of freedom, 97.5%
    assert row["low"] == pytest.approx(mean - of_the_table * error, abs=1e-8)
    assert row["high"] == pytest.approx(mean + of_the_table * error, abs=1e-8)
    assert row["p"] == pytest.approx(0.013236, abs=1e-6)  # of t = 4.2426
    assert row["tost_p"] > 0.5  # the mean itself lies outside the margin


@pytest.fixture(scope="module")
def golden():
    return json.loads((GOLDEN / "stats.json").read_text())


def test_figures_equal_pingouin_and_statsmodels(golden):
    """Ties and zeros among them; detectable leaves out what is significant on the wrong side."""
    assert len(golden["samples"]) >= 80
    for sample in golden["samples"]:
        differences = np.subtract(sample["treatment"], sample["baseline"])
        row = stats.paired_test(differences, sample["margin"], sample["alpha"])
        for key, expected in sample["expected"].items():
            tolerance = 5e-5 if key == "detectable" else 1e-7
            assert row[key] == pytest.approx(expected, rel=tolerance, abs=1e-12), (key, sample)


def test_holm_by_hand_and_equal_to_statsmodels(golden):
    assert stats.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])  # 3 x .01, 2 x .03
    assert stats.holm([]) == []
    for case in golden["holm"]:
        assert stats.holm(case["p_values"]) == pytest.approx(case["holm"], rel=1e-12)


@pytest.mark.parametrize("mean, p, tost_p, word", [
    (+0.05, 0.01, 0.99, "better"), (+0.002, 0.01, 0.01, "small gain"),
    (-0.05, 0.01, 0.99, "worse"), (-0.002, 0.01, 0.01, "small loss"),
    (+0.002, 0.6, 0.01, "equivalent"), (+0.002, 0.6, 0.3, "undecided")])
def test_findings(mean, p, tost_p, word):
    assert stats.finding(mean, p, tost_p, alpha=0.05) == word


def test_without_a_variance_there_is_no_test():
    for differences in ([0.02], [0.02, 0.02], [0.1 + 0.2, 0.3]):  # the last differ by rounding
        row = stats.paired_test(differences, 0.01, 0.05)
        assert row["mean"] == pytest.approx(np.mean(differences)) and row["n"] == len(differences)
        assert row["p"] is None and row["finding"] == "no test" and "low" not in row


# ---- Logs --------------------------------------------------------------------------------------

def noise(*key):
    """A number in [-1, 1) that depends only on the key: made-up logs are the same everywhere."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2 ** 47 - 1


EFFECT = {("mrpc", "tinybert", "typhoon"): 0.03, ("mrpc", "distilbert", "typhoon"): -0.03,
          ("cola", "tinybert", "typhoon"): 0.004, ("cola", "bert-base", "typhoon"): 0.01}
SCATTER = {("mrpc", "bert-base"): 0.02, ("cola", "tinybert"): 0.0004, ("cola", "bert-base"): 0.03}


def run_log(task="mrpc", model="tinybert", masker="typhoon", seed=0, spread=0.4, objective="mlm",
            corruption="mask", mlm_epochs=2, score=None, ranks=False, by_type=True,
            predictions=None):
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

    measured = (("masked", "[MASK]"), ("masked", "real"), ("unmasked", "all")) if ranks else ()
    if predictions is None:  # a task's own, and every tenth at random
        predictions = "".join("01"[(noise(task, i) < 0) != (noise(name, i) > 0.8)]
                              for i in range(40))

    layers = [100 + seed, 110 + seed, 120 + seed]
    learnt = [rank + 40 for rank in layers] if objective == "mae" else layers
    return {
        "format": "typhoon-run-3", "run": name, "sample": False,
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
                 "band": band, "notices": []} for epoch in (1, 2)] if mlm_epochs else [],
            "frequent_rates": rates, "best_epoch": min(2, mlm_epochs),
            "last_epoch": min(2, mlm_epochs)},
        "classifier": {
            "epochs": [
                {"epoch": epoch, "train_loss": 0.5, "dev_loss": 0.5, "accuracy": value - 0.05,
                 "f1": value, "matthews": value - 0.5 if task == "mrpc" else value,
                 "predictions": predictions} for epoch, value in enumerate(scores, 1)],
            "best_epoch": 2, "last_epoch": 3},
        "effective_rank": [
            {"stage": stage, "input": given, "tokens": tokens,
             "layers": layers if stage == "before" else learnt}
            for stage in ("before", "adapted", "fine-tuned")
            for given, tokens in measured],
        "seconds": 2.5 if masker == "typhoon" else 2.0}


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
    text = output(capsys, *arguments, "--format", "json")
    return json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


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
    assert max(map(len, text.splitlines())) <= 105
    for finding in ("better", "worse", "small gain", "equivalent", "undecided"):
        assert f"  {finding}\n" in text


def test_the_twelve_comparisons_are_paired_by_seed(ninety, capsys):
    rows = chosen(numbers(capsys, ninety)["comparisons"], kind="each")
    assert len(rows) == 12
    for row in rows:
        metric = {"mrpc": "f1", "cola": "matthews"}[row["task"]]
        treated, others = [
            [run_log(row["task"], row["model"], masker, seed)["classifier"]["epochs"][1][metric]
             for seed in range(5)] for masker in ("typhoon", row["baseline"])]
        differences = np.subtract(treated, others)
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
    assert report["notes"][1] == (
        "objective mlm, spread 0.4, corruption mask, mlm_epochs 2 (each): "
        f"{significant} of 12 comparisons significant "
        f"(after Holm: {adjusted}), {zero} intervals contain zero, "
        f"{equivalent} shown equivalent within 0.005.")
    assert "mlm_epochs 2 (pooled): 0 of 4 comparisons significant" in report["notes"][2]


def test_the_best_baseline_is_the_one_with_the_higher_mean(ninety, capsys):
    report = numbers(capsys, ninety)
    best = chosen(report["comparisons"], kind="each", best="*")
    assert len(best) == 6
    for row in best:
        means = {masker: chosen(report["scores"], task=row["task"], model=row["model"],
                                masker=masker)[0]["score"] for masker in ("random", "whole-word")}
        assert row["baseline"] == max(means, key=means.get)


def test_a_pooled_difference_of_a_seed_is_its_mean_over_the_backbones(ninety, capsys):
    rows = numbers(capsys, ninety)["comparisons"]
    pooled = chosen(rows, kind="pooled")
    assert len(pooled) == 4
    for row in pooled:
        each = chosen(rows, kind="each", task=row["task"], baseline=row["baseline"])
        means = [np.mean([one["differences"][str(seed)] for one in each]) for seed in range(5)]
        assert row | stats.paired_test(means, 0.01, 0.05) | {"finding": row["finding"]} == row
    assert [row["p_holm"] for row in pooled] == stats.holm([row["p"] for row in pooled])


def test_pooled_rows_leave_out_a_seed_that_one_backbone_lacks(tmp_path, capsys):
    logs = of_three_maskers([0, 1, 2]) + of_three_maskers([1, 2, 3], model="distilbert")
    pooled = chosen(numbers(capsys, write(tmp_path / "runs", logs))["comparisons"], kind="pooled")
    assert [row["n"] for row in pooled] == [2, 2]


def of_scores(tmp_path, **scores):
    """Runs of maskers with these scores in the seeds 0, 1, ..."""
    logs = [run_log(masker=masker, seed=seed, score=score)
            for masker in scores for seed, score in enumerate(scores[masker])]
    return write(tmp_path / "runs", logs)


def test_the_luck_of_one_seed_and_the_cost(tmp_path, capsys):
    runs = of_scores(tmp_path, random=(0.80, 0.80, 0.80), typhoon=(0.79, 0.82, 0.805))
    for seed, (seconds, loss) in enumerate([(3.0, 2.4), (2.0, 2.8), (8.0, 2.9)]):
        path = runs / f"mrpc-tinybert-typhoon-mlm-spread0.4-seed{seed}.json"
        log = changed(json.loads(path.read_text()), "mlm", "epochs", 1, "dev_loss", loss)
        path.write_text(json.dumps(log | {"seconds": seconds}))  # a random run has 2.0 and 2.5
    row = " ".join(output(capsys, runs).split("Table 3.")[1].split())
    assert re.search(r" random 2 -0\.0100 \+0\.0200 [\d.]+ \d+ \+0\.2000 1\.50 With one", row)


def test_the_intervals_are_drawn(tmp_path, capsys):
    """.005 +- 4.3027 x .015 / sqrt(3) is -.0323 to .0423; so one of 25 steps is .00169."""
    runs = of_scores(tmp_path, random=(0.80, 0.80, 0.80), typhoon=(0.82, 0.79, 0.805))
    text = output(capsys, runs)
    assert "\nThe intervals of Table 2, from -0.0423 to 0.0423\n" in text
    drawing = 6 * " " + "-------------:-----|--*--:-------------------"
    assert f"\nrandom    {drawing}\n" in text


def test_the_share_of_same_predictions_by_hand(tmp_path, capsys):
    """Random's two seeds agree on 2 of 4; the pairs on 3 and 1 of 4: .5 on average."""
    predictions = {("random", 0): "0110", ("random", 1): "0101",
                   ("typhoon", 0): "0111", ("typhoon", 1): "1011"}
    logs = [run_log(masker=masker, seed=seed, predictions=predictions[masker, seed])
            for masker, seed in predictions]
    report = numbers(capsys, write(tmp_path / "runs", logs))
    assert [row["same"] for row in report["scores"]] == [0.5, 0.5]
    assert [row["same"] for row in report["comparisons"]] == [0.5]
    logs[2]["classifier"]["epochs"][1]["predictions"] = "0110"  # the reported epoch; 1 and .25
    report = numbers(capsys, write(tmp_path / "runs", logs))
    assert [row["same"] for row in report["comparisons"]] == [0.625]


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
    assert [note[:27] for note in after["notes"][1:] if "(each)" in note] == [
        "objective mlm, spread 0.4, ", "objective mlm, spread 1.0, "]


def test_several_treatments_are_one_family(tmp_path, capsys):
    """whole-word uses no spread: it stands with typhoon's, and with each of two."""
    runs = write(tmp_path / "runs", of_three_maskers())
    arguments = ["--treatment", "typhoon", "whole-word", "typhoon", "--baseline", "random"]
    report = numbers(capsys, runs, *arguments)
    rows = report["comparisons"]
    assert [(row["treatment"], row["spread"], row["best"]) for row in rows] == [
        ("typhoon", 0.4, "*"), ("whole-word", 0.4, "*")]
    assert [row["p_holm"] for row in rows] == stats.holm([row["p"] for row in rows])
    assert "of 2 comparisons significant" in report["notes"][1] and len(report["notes"]) == 2
    text = output(capsys, runs, *arguments)
    assert re.search(r"\ntreatment +baseline +best", text) and "typhoon or whole-word minus" in text
    assert not re.search(r"\ntreatment +baseline +best", output(capsys, runs))

    write(runs, [run_log(seed=seed, spread=1.0) for seed in range(5)])
    rows = numbers(capsys, runs, *arguments)["comparisons"]
    assert [(row["treatment"], row["spread"]) for row in rows] == [
        ("typhoon", 0.4), ("whole-word", 0.4), ("typhoon", 1.0), ("whole-word", 1.0)]
    alone = numbers(capsys, runs, "--treatment", "whole-word", "--baseline", "random")
    assert [row["spread"] for row in alone["comparisons"]] == [None]


def test_seeds_of_one_side_are_named_and_left_out(tmp_path, capsys):
    logs = [run_log(masker="random", seed=seed) for seed in (0, 1, 2, 7)]
    logs += [run_log(masker="whole-word", seed=seed) for seed in (0, 1, 2, 3)]
    logs += [run_log(seed=seed) for seed in (0, 1, 2, 3)]
    runs = write(tmp_path / "runs", logs)
    report = numbers(capsys, runs)
    assert [list(row["differences"]) for row in report["comparisons"]] == [
        ["0", "1", "2"], ["0", "1", "2", "3"]]
    note = ("NOTE: task mrpc, model tinybert, objective mlm, spread 0.4, corruption mask, "
            "mlm_epochs 2: typhoon has the seeds [0, 1, 2, 3], random [0, 1, 2, 7]; only those "
            "of both are compared.")
    assert [text for text in report["notes"] if "seeds" in text] == [note]
    assert note in " ".join(output(capsys, runs).split())


def test_other_maskers_in_either_place(tmp_path, capsys):
    logs = [run_log(masker=masker, seed=seed) for masker in ("rare-word", "typhoon", "random")
            for seed in (0, 1, 2)]
    runs = write(tmp_path / "runs", logs)
    for treatment, baselines in (("rare-word", ["random", "typhoon"]), ("random", ["typhoon"])):
        rows = numbers(capsys, runs, "--treatment", treatment, "--baseline", *baselines,
                       treatment)["comparisons"]
        assert [(row["baseline"], row["spread"], row["n"]) for row in rows] == [
            (baseline, 0.4, 3) for baseline in baselines]


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
    assert list(rows[0]["differences"].values()) == pytest.approx([0.02, 0.01, -0.01])
    assert len(rows) == 1
    swapped = numbers(capsys, runs, "--compare", axis, "--treatment", str(baseline),
                      "--baseline", str(treatment))["comparisons"]
    assert swapped[0]["mean"] == -rows[0]["mean"]
    for side in ("--treatment", "--baseline"):
        error = refusal(capsys, runs, "--compare", axis, side, str(treatment), "0.7")
        there = ", ".join(sorted([str(treatment), str(baseline)]))
        assert error == f"stats.py: no run has {axis} 0.7; there are: {there}\n"


# ---- The other tables --------------------------------------------------------------------------

def test_ranking_by_hand():
    """Ranks 1 2 3 against 1 3 2: Spearman's is 1 - 6 (0 + 1 + 1) / (3 (9 - 1)) = 0.5."""
    one = {"rates": {"the": 0.29, "of": 0.30, "and": 0.31, "only here": 0.5}}
    other = {"rates": {"the": 0.28, "of": 0.35, "and": 0.32, "only there": 0.1}}
    assert stats.rank_correlation(one, other) == pytest.approx(0.5)
    uniform = {"rates": {"the": 0.3, "of": 0.3}}  # ranks nothing
    assert stats.rank_correlation(one, uniform) is None
    assert stats.rank_correlation(one, {"rates": {}}) is None


def test_masking_by_spread(tmp_path, capsys):
    logs = [run_log(seed=seed, spread=spread) for spread in (0.4, 1.0) for seed in (0, 1)]
    logs += [run_log(masker="random", seed=seed) for seed in (0, 1)]
    runs = write(tmp_path / "runs", logs)
    rows = chosen(numbers(capsys, runs)["scores"], masker="typhoon")
    for key in ("kl_mean", "kl_last"):
        kl = [log["mlm"]["epochs"][1][key] for log in logs[:4]]
        assert [row[key] for row in rows] == pytest.approx([np.mean(kl[:2]), np.mean(kl[2:])])
    text = output(capsys, runs)
    assert re.search(r"\ntyphoon +1\.0 +2 +.* 0\.280  0\.305  0\.320", text)
    assert re.search(r"\nrandom +- +2 +.* 0\.300  0\.300  0\.300", text)


def test_a_masker_by_position_and_no_adaptation_show_a_dash(tmp_path, capsys):
    by_position = [run_log(masker="spans", seed=seed, by_type=False) for seed in (0, 1)]
    text = output(capsys, write(tmp_path / "spans", by_position))
    assert re.search(r"\n2  0\.7\d+  0\.0\d+( +-){6}  0\.\d+\n", text)
    without = of_three_maskers([0, 1], mlm_epochs=0)
    rows = numbers(capsys, write(tmp_path / "none", without))["comparisons"]
    assert [row["mlm_loss"] for row in rows] == [None, None]


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
        "mae masked real 1 before - 101 111 121",
        "mlm masked real 1 before - 101 111 121",
        "mae masked real 2 adapted 3.00 141 151 161",
        "mlm masked real 2 adapted 2.50 101 111 121",
        "mae masked real 3 fine-tuned - 141 151 161",
        "mlm masked real 3 fine-tuned - 101 111 121"]


def test_a_collapsed_run_is_named_and_counts(tmp_path, capsys):
    logs = of_three_maskers(task="cola")
    for log in logs:
        if log["run"] == "cola-tinybert-typhoon-mlm-spread0.4-seed3":
            log["classifier"]["epochs"][1]["matthews"] = 0.0
    report = numbers(capsys, write(tmp_path / "runs", logs))
    row = chosen(report["comparisons"], kind="each", baseline="random")[0]
    assert row["n"] == 5 and row["mean"] < -0.1 and row["differences"]["3"] < -0.7
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


def test_one_run_alone_is_shown_and_a_sample_run_is_marked_at_the_top(tmp_path, capsys):
    text = output(capsys, write(tmp_path / "runs", [run_log(seed=3) | {"sample": True}]))
    assert text.startswith("SAMPLE: made-up data;")
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
    logs[3]["identity"][option] = 77 if option == "mlm_epochs" else "other"
    error = refusal(capsys, write(tmp_path / "runs", logs))
    assert f"differ in {option}" in error and error.count(".json") == 2 and logs[3]["run"] in error


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
    ([run_log(), run_log(seed=1, predictions="01")], "differ in dev_examples"),
    ([run_log(ranks=True), changed(run_log(ranks=True, seed=1), "effective_rank", 0, "layers", [])],
     "differ in layers"),
    ([run_log(), changed(run_log(), "run", "copy")], "are one run"),
    ([changed(run_log(), "format", "typhoon-run-2")], "format is not typhoon-run-3"),
    ([changed(run_log(), "classifier", "epochs", 1, "f1", "0.8")], "f1 is '0.8'"),
    ([changed(run_log(), "classifier", "epochs", 1, "predictions", "")], "are not 0 and 1"),
    ([changed(run_log(), "classifier", "epochs", 1, "predictions", "0120")], "are not 0 and 1"),
])
def test_logs_that_are_refused(tmp_path, capsys, logs, message):
    error = refusal(capsys, write(tmp_path / "runs", logs))
    assert message in error and error.count(".json") == len(logs)


MISSING = "(missing)"
NAME, SHARE, NUMBER, SCORE = ("x", "1"), (0, 0.5), (0, 0.5, 1e9), (-1, 0, 0.5)
UNREAD = {  # the log's own parts that say nothing to the tables
    "run", "train_examples", "dev_examples", "parameters", "maskable_tokens", "newly_initialised",
    "environment", "epoch", "train_loss", "accuracy", "masked_fraction", "notices", "lowest", "25%",
    "75%", "highest", "last_epoch"}
LEGITIMATE = {  # what else may stand in the others; and in the identity, what equals its value
    "task": NAME, "model": NAME, "masker": NAME, "objective": NAME, "spread": (None, 0, 0.5),
    "seed": (0,), "decoder_layers": (None, MISSING), "clip": (True,), "warmup": (0,),
    "f1": SCORE, "matthews": SCORE, "seconds": (0.5, 1e9),
    "frequent_rates": ([], {}), "word0": (*SHARE, MISSING), "dev_loss": NUMBER, "band": (None,),
    "kl_mean": NUMBER, "kl_last": NUMBER, "5%": SHARE, "50%": SHARE, "95%": SHARE, "input": NAME,
    "tokens": NAME, "0 of layers": NUMBER}


def mutations(value, name=""):
    """The value with one of its parts replaced; the name of that part, and its replacement."""
    for key in value if isinstance(value, dict) else range(len(value)):
        part = f"{key} of {name}" if isinstance(key, int) else key
        for other in (MISSING, None, "x", "1", [], {}, True, -1, 0, 0.5, math.nan, 1e9):
            mutant = value.copy()
            mutant[key] = other
            if other == MISSING:
                del mutant[key]
            yield mutant, part, other
        if isinstance(value[key], (dict, list)) and key not in UNREAD:
            for below, part, other in mutations(value[key], key):
                mutant = value.copy()
                mutant[key] = below
                yield mutant, part, other


def test_a_log_with_any_value_replaced_is_refused_unless_it_is_legitimate(
        tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logs = [run_log(masker=masker, seed=seed, ranks=True)
            for masker, seed in (("typhoon", 0), ("typhoon", 1), ("random", 0))]
    for log in logs:
        log["identity"]["effective_rank"] = "yes"  # the log has this name twice, and dev_loss too
        del log["classifier"]["epochs"][1]["dev_loss"]
        for part in (log["mlm"], log["classifier"]):
            part["epochs"] = part["epochs"][1:2]
            part["best_epoch"] = part["last_epoch"] = 1
        log["mlm"]["frequent_rates"] = {"word0": 0.31}
        log["effective_rank"] = [log["effective_rank"][0] | {"layers": [100]}]
    runs = write(tmp_path / "runs", logs)
    number = 0
    for mutant, part, other in mutations(logs[0]):
        (runs / f"{logs[0]['run']}.json").write_text(json.dumps(mutant))
        code = stats.main(["runs"])
        error = capsys.readouterr().err
        harmless = part in UNREAD or other in LEGITIMATE.get(part, ())
        assert code == (0 if harmless else 2), (part, other, error)
        assert len(error) <= 300 and error.count("\n") == (code == 2), (part, other, error)
        number += 1
    assert number > 700


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"7", b"null", b"\xff\xfe{}", b"{}", b"<html></html>", b"[" * 99999,
    b'{"format": "typhoon-run-3"}', json.dumps(run_log()).encode()[:-1]], ids=range(11))
def test_foreign_files_are_refused(tmp_path, capsys, content):
    runs = write(tmp_path / "runs", [run_log()])
    (runs / "foreign.json").write_bytes(content)
    assert "foreign.json: is no whole run log" in refusal(capsys, runs)


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


# ---- Formats and the command -------------------------------------------------------------------

def test_markdown_has_the_same_number_of_columns_in_every_row(tmp_path, capsys):
    logs = [run_log(masker=masker, seed=seed, model="a_b d\u00e9", ranks=True)
            for masker in ("random", "typhoon") for seed in (0, 1, 2)]
    text = output(capsys, write(tmp_path / "runs", logs), "--format", "markdown")
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert len(blocks) == 4
    for lines in blocks:
        assert len({line.count("|") for line in lines}) == 1
        assert re.fullmatch(r"\|( -+ \|)+", lines[1])


def test_the_command_itself(ninety, root):
    command = [sys.executable, "-W", "error", root / "stats.py"]
    done = subprocess.run([*command, ninety], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "\nTable 1. " in done.stdout
    done = subprocess.run([*command, ninety / "nothing.json"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="Windows has no SIGPIPE")
def test_it_ends_quietly_where_nobody_reads_on(ninety, root):
    command = [sys.executable, root / "stats.py", ninety]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait() == -signal.SIGPIPE
