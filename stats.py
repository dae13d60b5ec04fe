"""The statistics over the run logs: is Typhoon better, how sure can one be, and what does [MASK] do to the ranks?

    python stats.py runs/

Top to bottom: the effective rank of representations; one paired comparison; which logs may be read together; the
tables; how they are shown. Twelve comparisons, paired by seed, are the paper's [A: its abstract]; detectable
difference, equivalence test and Holm's adjustment are ours [D]: without them "not significant" does not say how large a
difference five seeds could have missed.
"""
import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glue_data import TASKS, UserError

METRIC = {name: task.metric for name, task in TASKS.items()}  # higher is better; accuracy for any other task
AXES = ("task", "model", "objective", "masker", "spread", "seed")  # nothing else may differ between logs read together
IGNORE_SPREAD = ("random", "whole-word")  # their runs are the same at every spread


# ---- Effective rank --------------------------------------------------------------------------------------------------

def effective_rank(representations, tau: float = 0.9) -> int:
    """The smallest k with sum_{i<=k} sigma_i^2 / sum_i sigma_i^2 >= tau, over the singular values in descending order.

    representations (N, d): an array or a tensor; 0 when N = 0 or all of it is zero. The share is compared with a
    relative tolerance of 1e-9, so that nine of ten equal singular values reach 0.9 whatever the rounding.
    Raises ValueError when it is not a finite matrix, or tau is not in (0, 1].
    Source: "Representation Deficiency in Masked Language Modeling", tau = 0.9 [M].
    """
    return _rank(representations, tau, lambda matrix: np.linalg.svd(matrix, compute_uv=False) ** 2)


def effective_rank_of_second_moment(second_moment, tau: float = 0.9) -> int:
    """The same integer from H^T H (d, d), whose eigenvalues are sigma_i^2, for representations H (N, d).

    The second moment can be summed batch by batch, in float64, so that memory does not grow with N.
    """
    return _rank(second_moment, tau, lambda matrix: np.linalg.eigvalsh(matrix)[::-1].clip(min=0))  # rounding: some < 0


def _rank(matrix, tau: float, energy_of: Callable[[np.ndarray], np.ndarray]) -> int:
    matrix = matrix.detach().cpu().double().numpy() if hasattr(matrix, "detach") else np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all() or not 0 < tau <= 1:
        raise ValueError(f"expected a matrix of finite numbers and tau in (0, 1]; shape {matrix.shape}, tau {tau}")
    cumulative = np.cumsum(energy_of(matrix))  # (d,)
    return int(np.argmax(cumulative >= tau * cumulative[-1] * (1 - 1e-9))) + 1 if cumulative.any() else 0


# ---- One comparison --------------------------------------------------------------------------------------------------

class PairedComparison(NamedTuple):
    """Treatment minus baseline over n pairs, in units of the metric. None: undefined, and `finding` says why."""
    n: int  # pairs compared
    dropped: int  # pairs left out, because a value is NaN or infinite
    mean_difference: float | None = None
    standard_deviation: float | None = None  # of the differences, n - 1 in the denominator
    ci_low: float | None = None  # (1 - alpha) t interval of the mean difference
    ci_high: float | None = None
    t: float | None = None  # paired t test, two-sided
    degrees_of_freedom: int | None = None
    p_t: float | None = None
    wilcoxon_statistic: float | None = None  # the smaller rank sum
    p_wilcoxon: float | None = None  # two-sided, exact
    smallest_p_wilcoxon: float | None = None  # what p_wilcoxon would be if all differences had one sign
    d_z: float | None = None  # Cohen's d of paired samples: mean / standard deviation of the differences
    minimum_detectable_difference: float | None = None  # with 80% power, two-sided at alpha, given this deviation
    tost_p: float | None = None  # equivalence: two one-sided t tests that the true mean is not in (-margin, margin)
    finding: str = ""


def compare_paired(treatment: Sequence[float], baseline: Sequence[float], margin: float = 0.01,
                   alpha: float = 0.05) -> PairedComparison:
    """Is the treatment better than the baseline, pair by pair, and how sure can one be?

    treatment, baseline (n,): a metric where higher is better; the i-th values belong together (the same seed).
    margin: a true difference below it counts as none, in units of the metric.
    Pairs with a NaN or infinite value are left out. Fewer than two pairs: no test. All differences equal (to 1e-12
    of the largest value): the t test is undefined, and so is all that builds on its standard error.
    Raises ValueError for unequal lengths, a margin that is not positive, an alpha outside [0.001, 0.5).
    """
    treatment, baseline = np.asarray(treatment, np.float64), np.asarray(baseline, np.float64)
    if treatment.ndim != 1 or treatment.shape != baseline.shape or not (0 < margin < math.inf and 0.001 <= alpha < 0.5):
        raise ValueError("expected two sequences of one length, margin above 0 and alpha in [0.001, 0.5), got shapes "
                         f"{treatment.shape} and {baseline.shape}, margin {margin}, alpha {alpha}")
    usable = np.isfinite(treatment) & np.isfinite(baseline)
    difference = treatment[usable] - baseline[usable]  # (n,)
    n, dropped = len(difference), int((~usable).sum())
    if n < 2:
        return PairedComparison(n, dropped, *difference.tolist(), finding=f"no test: {('no pairs', 'one pair')[n]}")
    resolution = 1e-12 * max(abs(treatment[usable]).max(), abs(baseline[usable]).max())  # less is rounding
    mean, wilcoxon = float(difference.mean()), exact_wilcoxon(difference, resolution)
    if np.ptp(difference) <= resolution:
        return PairedComparison(n, dropped, mean, 0.0, None, None, None, None, None, *wilcoxon,
                                finding="test undefined: all differences are equal")
    from scipy.stats import t as student  # here: it takes a second to import, and train.py needs only the ranks
    deviation, freedom = float(difference.std(ddof=1)), n - 1
    error = deviation / math.sqrt(n)
    half_width = error * float(student.isf(alpha / 2, freedom))
    p_t = float(2 * student.sf(abs(mean) / error, freedom))
    tost_p = float(student.sf((margin - abs(mean)) / error, freedom))  # the larger of the two one-sided p values
    return PairedComparison(
        n, dropped, mean, deviation, mean - half_width, mean + half_width, mean / error, freedom, p_t, *wilcoxon,
        mean / deviation, detectable_effect(n, alpha) * deviation, tost_p, in_words(mean, p_t, tost_p, margin, alpha))


def in_words(mean: float, p: float, tost_p: float, margin: float, alpha: float) -> str:
    """Absence of evidence and evidence of absence are different findings; and a difference can be real but small."""
    equivalent = f"shown to be equivalent within {margin:g}"
    if p < alpha:
        better = "significantly better" if mean > 0 else "significantly worse"
        return f"{better}, yet {equivalent}" if tost_p < alpha else better
    return equivalent if tost_p < alpha else f"no significant difference (nor equivalence within {margin:g})"


def exact_wilcoxon(difference: np.ndarray, resolution: float = 0.0) -> tuple[float | None, float | None, float | None]:
    """Wilcoxon's signed-rank test: (the smaller rank sum, exact two-sided p, the smallest p it could have had).

    Differences (n,) within `resolution` of zero are left out; absolute values within it are tied and share their mean
    rank. p is what the enumeration of all sign flips of these ranks gives, min(1, 2 P(rank sum <= the smaller one)),
    with ties as without; the distribution of the rank sum is built up rank by rank instead. None when none is left.
    """
    difference = difference[abs(difference) > resolution]
    if not len(difference):
        return None, None, None
    difference = difference[np.argsort(abs(difference))]
    tie = np.concatenate([[0], np.cumsum(np.diff(abs(difference)) > resolution)])  # (n,): which group of ties
    size = np.bincount(tie)
    doubled_rank = (2 * np.cumsum(size) - size + 1)[tie]  # (n,): whole numbers, 2 4 6 ... without ties
    total, positive = int(doubled_rank.sum()), int(doubled_rank[difference > 0].sum())
    probability = np.eye(1, total + 1)[0]  # of each doubled rank sum when signs are fair coins: at first 1, 0, 0, ...
    for rank in doubled_rank:
        probability = (probability + np.concatenate([np.zeros(rank), probability[:-rank]])) / 2
    smaller = min(positive, total - positive)
    return smaller / 2, min(1.0, float(2 * probability[:smaller + 1].sum())), 2.0 ** (1 - len(difference))


def detectable_effect(n: int, alpha: float, power: float = 0.8) -> float:
    """The true d_z that n pairs find significant with this power: two-sided paired t test, noncentral t."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t as student
    df, critical = n - 1, student.isf(alpha / 2, n - 1)  # sf(critical, df, -x): where cdf(-critical, df, x) is NaN
    noncentrality = brentq(lambda x: nct.sf(critical, df, x) + nct.sf(critical, df, -x) - power, 0, 2 * critical + 5)
    return float(noncentrality) / math.sqrt(n)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p values adjusted by Holm's step-down method over those that are not None."""
    tested = sorted(p for p in p_values if p is not None)
    adjusted = np.maximum.accumulate([min(1.0, (len(tested) - k) * p) for k, p in enumerate(tested)])
    return [None if p is None else float(adjusted[tested.index(p)]) for p in p_values]


# ---- The logs --------------------------------------------------------------------------------------------------------

# What is read of a log, by key: a type, a range (low, high; NaN where a third entry allows it), or [each of a list].
SCORE = (-1, 1, math.nan)
LOG = {"sample": bool, "environment": dict, "data": {"files": dict}, "backbone": {"files": dict},
       "configuration": {"task": str, "model": str, "objective": str, "masker": str, "spread": (0, 1), "seed": int},
       "mlm": {"epochs": [{"epoch": int, "masked_fraction": (0, 1, math.nan), "kl_per_token": (-1, 1e9, math.nan)}],
               "best_epoch": int, "last_epoch": int},
       "classifier": {"epochs": [{"epoch": int, "accuracy": SCORE, "f1": SCORE, "matthews": SCORE}],
                      "best_epoch": int, "last_epoch": int},
       "effective_rank": [{"stage": str, "input": str, "tokens": str, "layers": [(0, 1e9)]}]}


def check(value, expected, where: str) -> None:
    """UserError unless the value of a log at `where` is as LOG says."""
    kind = expected if isinstance(expected, type) else type(expected)
    right, wanted = type(value) is kind, kind.__name__
    if kind is tuple:
        wanted, nan_is_fine = f"a number from {expected[0]} to {expected[1]}", len(expected) == 3
        right = type(value) in (int, float) and (expected[0] <= value <= expected[1] or value != value and nan_is_fine)
    if not right:
        raise UserError(f"{where}: expected {wanted}, found {'nothing' if value is None else repr(value)[:40]}; "
                        "the log was edited or is of another version: move it away and run again")
    if isinstance(expected, dict):
        for key in expected:
            check(value.get(key), expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        for i, item in enumerate(value):
            check(item, expected[0], f"{where}[{i}]")


def read_log(path: Path, epoch: str) -> dict:
    """One log, checked; its axes, and each stage's figures at the "best" or "last" epoch, become top-level keys."""
    try:
        log = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give run logs, or the folder that has them") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); logs are written whole: move it away and run again")
    if not isinstance(log, dict) or log.get("format") != "typhoon-run-1":
        raise UserError(f"{path} is not a run log of train.py, its format is not typhoon-run-1: move it away")
    log = {"effective_rank": []} | log  # there only with --effective-rank
    check(log, LOG, f"{path}: log")
    for stage, keys in (("classifier", ("accuracy", "f1", "matthews")), ("mlm", ("masked_fraction", "kl_per_token"))):
        figures = {0: {}} if stage == "mlm" else {}  # 0: there was no adaptation
        figures |= {record["epoch"]: record for record in log[stage]["epochs"]}
        number = log[stage][f"{epoch}_epoch"]
        if number not in figures:
            raise UserError(f"{path}: log.{stage}.epochs lacks the {epoch}_epoch, {number}: move it away and run again")
        log |= {key: figures[number].get(key) for key in keys}
    axes = {axis: log["configuration"][axis] for axis in AXES}
    return log | axes | {"path": path, "score": log[METRIC.get(axes["task"], "accuracy")]}


def read_logs(paths: Sequence[str | Path], epoch: str = "best") -> list[dict]:
    """All the logs of these files, and of these directories (their own *.json, not those of folders below), by axes.

    UserError for what is no run log, and for logs that do not belong together: one run twice, sample and real runs,
    other files of one task or backbone, or any option that differs and is not an axis.
    """
    logs, first = [], {}  # first: what must agree -> its value, and the first log that has it
    for path in map(Path, paths):
        files = sorted(file for file in path.glob("*.json") if file.name[0] != ".") if path.is_dir() else [path]
        if not files:
            raise UserError(f"{path} holds no run log (*.json); train.py writes them where its --out says")
        logs += [read_log(file, epoch) for file in files]
    options = sorted({option for log in logs for option in log["configuration"]}.difference(AXES))
    for log in logs:
        path, run = log["path"], tuple(log[axis] for axis in AXES)
        if run in first:
            raise UserError(f"{first[run][1]} and {path} are logs of one run; keep one of them")
        facts = {f"--{option.replace('_', '-')}": log["configuration"].get(option) for option in options
                 if option != "decoder_layers" or log["objective"] == "mae"}  # MLM has no decoder
        facts = {"being of the made-up sample": log["sample"], f"the data files of {log['task']}": log["data"]["files"],
                 f"the files of the model {log['model']}": log["backbone"]["files"]} | facts | {run: None}
        for fact, value in facts.items():
            other, other_path = first.setdefault(fact, (value, path))
            if other != value:
                values = "" if isinstance(value, dict) else f" ({other} and {value})"
                raise UserError(f"{other_path} and {path} differ in {fact}{values}; only {', '.join(AXES)} may differ "
                                "between logs that are read together: move one away, or name those that belong together")
    return sorted(logs, key=lambda log: [log[axis] for axis in AXES])


# ---- The tables, each a list of rows ---------------------------------------------------------------------------------

def grouped(logs: list[dict], *axes: str) -> list[tuple[dict, list[dict]]]:
    """[(the axes of a group, its logs)]; the logs are sorted, so a group stands together."""
    return [(dict(zip(axes, key)), list(group)) for key, group in groupby(logs, lambda log: [log[a] for a in axes])]


def summaries(logs: list[dict], axes: Sequence[str], figures: Sequence[str]) -> list[dict]:
    """Tables 1 and 3: n, mean and standard deviation of the figures over the seeds; None where n is too small."""
    rows = []
    for row, group in grouped(logs, *axes):
        row["metric"] = METRIC.get(row["task"], "accuracy")
        for figure in figures:
            values = [log[figure] for log in group if log[figure] is not None and log[figure] == log[figure]]
            row |= {f"{figure}_n": len(values), f"{figure}_mean": float(np.mean(values)) if values else None,
                    f"{figure}_sd": float(np.std(values, ddof=1)) if len(values) > 1 else None}
        rows.append(row)
    return rows


def comparisons(logs: list[dict], treatment: str, baselines: list[str], margin: float, alpha: float,
                notes: list[str]) -> list[dict]:
    """Table 2: treatment minus each baseline, paired by seed; p values after Holm over its rows, of t and TOST apart.

    What could not be paired goes into `notes`. A baseline that ignores the spread lends the one run it has of a seed
    at another spread: it would be the same run.
    """
    rows = []
    for axes, group in grouped(logs, "task", "model", "objective"):
        of = {masker: [log for log in group if log["masker"] == masker] for masker in (treatment, *baselines)}
        notes += [f"{' '.join(axes.values())}: no {masker} run to compare." for masker in of if not of[masker]]
        for at_spread, treated in grouped(of[treatment], "spread"):
            treated, spread = {log["seed"]: log for log in treated}, at_spread["spread"]
            for baseline in filter(of.get, baselines):
                runs = Counter(log["seed"] for log in of[baseline])
                others = {log["seed"]: log for log in of[baseline] if log["spread"] == spread
                          or baseline in IGNORE_SPREAD and runs[log["seed"]] == 1}
                seeds = sorted(treated.keys() & others.keys())
                scores = [[side[seed]["score"] for seed in seeds] for side in (treated, others)]
                rows.append({"number": len(rows) + 1, **axes, "spread": spread, "treatment": treatment,
                             "baseline": baseline, "seeds": seeds, **compare_paired(*scores, margin, alpha)._asdict()})
                notes += [f"Comparison {len(rows)} {what} seed {', '.join(map(str, sorted(some)))}." for what, some in (
                    (f"has no {baseline} run at its spread for", treated.keys() - others.keys()),
                    (f"has no {treatment} run for", others.keys() - treated.keys()),
                    (f"takes from another spread, which {baseline} ignores, its run for",
                     {seed for seed in seeds if others[seed]["spread"] != spread})) if some]
    for row, p, tost_p in zip(rows, holm([row["p_t"] for row in rows]), holm([row["tost_p"] for row in rows])):
        row |= {"p_holm": p, "tost_p_holm": tost_p}
        if p is not None:
            row["finding"] = in_words(row["mean_difference"], p, tost_p, margin, alpha)
    for n, p in sorted({(row["n"], row["smallest_p_wilcoxon"] or 0) for row in rows}):
        if p > alpha:
            zeros = n - round(1 - math.log2(p))  # the test leaves differences of zero out
            notes.append(f"With n = {n}{f', {zeros} of them without a difference,' * (zeros > 0)} the exact Wilcoxon test "
                         f"cannot reach {alpha:g}: its smallest p is {p:g}.")
    return rows


def ranks(logs: list[dict]) -> list[dict]:
    """Table 4: effective rank per layer, mean over the seeds; MLM and MAE-LM side by side at each stage."""
    of_log, of_record, ranks_of = ("task", "model", "masker", "spread"), ("input", "tokens"), {}
    for log in logs:
        for record in log["effective_rank"]:
            for layer, rank in enumerate(record["layers"]):
                row = (*(log[name] for name in of_log), *(record[name] for name in of_record), layer)
                ranks_of.setdefault(row, {}).setdefault(f"{record['stage']}/{log['objective']}", []).append(rank)
    return [dict(zip((*of_log, *of_record, "layer"), row))
            | {column: float(np.mean(values)) for column, values in ranks_of[row].items()} for row in sorted(ranks_of)]


# ---- How they are shown ----------------------------------------------------------------------------------------------

SETTING, SCORES = "task model objective spread:g", "metric n=score_n:d mean=score_mean:.4f sd=score_sd:.4f"
TABLES = [  # (rows, title, columns: [heading=]key[:format]; without a format it is a text, aligned to the left)
    ("table_1", "Table 1. Scores over the seeds, {epoch} epoch",
     f"{SETTING} masker {SCORES} accuracy=accuracy_mean:.4f sd=accuracy_sd:.4f"),
    ("table_2", "Table 2a. {treatment} minus baseline, paired by seed: mean and its {confidence:g}% interval",
     f"#=number:d {SETTING} baseline n:d mean=mean_difference:+.4f low=ci_low:+.4f high=ci_high:+.4f "
     "sd=standard_deviation:.4f"),
    ("table_2", "Table 2b. Paired t, exact Wilcoxon (W), detectable at 80% power, equivalence (TOST, {margin:g})",
     "#=number:d t:.2f p=p_t:.3g Holm=p_holm:.3g W=wilcoxon_statistic:g p=p_wilcoxon:.3g d_z:.2f "
     "detectable=minimum_detectable_difference:.4f TOST=tost_p:.3g Holm=tost_p_holm:.3g"),
    ("table_2", "Table 2c. Findings for {treatment}, by the p after Holm", "#=number:d task model baseline finding"),
    ("table_3", "Table 3. {treatment}: KL from uniform masking (nats per token) and fraction masked, by spread",
     f"{SETTING} KL=kl_per_token_mean:.2e masked=masked_fraction_mean:.4f {SCORES}"),
    ("table_4", "Table 4. Effective rank (tau 0.9), mean over the seeds, by stage and objective",
     "task model masker spread:g input tokens layer:d before/mlm:.1f before/mae:.1f adapted/mlm:.1f adapted/mae:.1f "
     "fine-tuned/mlm:.1f fine-tuned/mae:.1f")]


def escaped(text: str, style: str) -> str:
    return re.sub({"text": "(?!)", "markdown": "[|]", "latex": "[&%$#_{}]"}[style], r"\\\g<0>", text)


def table(title: str, columns: str, rows: list[dict], style: str) -> str:
    """One aligned table for a terminal ("text"), a README ("markdown") or a paper ("latex")."""
    names, _, forms = zip(*(column.partition(":") for column in columns.split()))
    headings, _, keys = zip(*(name.rpartition("=") for name in names))
    lines = [[heading or key for heading, key in zip(headings, keys)]] + [
        ["-" if row.get(key) is None else format(row[key], form) for key, form in zip(keys, forms)] for row in rows]
    lines = [[escaped(text, style) for text in line] for line in lines]
    width = [max(2, *map(len, column)) for column in zip(*lines)]
    if style != "latex":
        lines.insert(1, ["-" * (w - 1) + ("-:"[style == "markdown" and form != ""]) for w, form in zip(width, forms)])
    lines = [[text.rjust(w) if form else text.ljust(w) for text, w, form in zip(line, width, forms)] for line in lines]
    if style != "latex":
        left, between, right = ("| ", " | ", " |") if style == "markdown" else ("", "  ", "")
        return "\n".join([title, ""] + [(left + between.join(line) + right).rstrip() for line in lines])
    heading, *body = (re.sub(r"(?<!\w)-(?=\d)", "$-$", " & ".join(line)) + r" \\" for line in lines)
    return "\n".join([rf"\begin{{table}}\caption{{{escaped(title.split('. ', 1)[1], style)}}}",
                      rf"\begin{{tabular}}{{{''.join('r' if form else 'l' for form in forms)}}}", r"\hline", heading,
                      r"\hline", *body, r"\hline", r"\end{tabular}\end{table}"])


def forest_plot(rows: list[dict], margin: float) -> str:
    """The intervals of Table 2 on one scale, in 80 columns."""
    labels = [f"{row['number']:>3} {row['task']} {row['model']} {row['baseline']}"[:40] for row in rows]
    left = max(map(len, labels)) + 1 | 1  # odd, so that zero gets a column of its own
    reach = max(margin, *(abs(row[key] or 0) for row in rows for key in ("mean_difference", "ci_low", "ci_high")))
    half = (79 - left) // 2
    lines = ["Intervals of Table 2a: [--o--], with | at zero and : at the margins", "",
             f"{'':{left}}{-reach:<{half}.4f}0{reach:>{half}.4f}"]
    for label, row in zip(labels, rows):
        axis = [" "] * (2 * half + 1)
        for sign, value in zip("::|[]o", (-margin, margin, 0, row["ci_low"], row["ci_high"], row["mean_difference"])):
            if value is not None:
                axis[half + round(value / reach * half)] = sign
        axis = re.sub(r"\[.*]", lambda interval: interval[0].replace(" ", "-"), "".join(axis))
        lines.append(f"{label:{left}}{axis}".rstrip())
    return "\n".join(lines)


def shown(numbers: dict, style: str) -> str:
    if style == "json":
        return json.dumps(numbers, indent=1, allow_nan=False)
    parts = ["SAMPLE: these runs are on made-up data; they say nothing about MRPC or CoLA."] * numbers["sample"]
    parts += [table(title.format(**numbers), columns, numbers[rows], style)
              for rows, title, columns in TABLES if numbers[rows]]
    if numbers["table_2"] and style != "latex":  # a paper has better means of drawing
        fence = "```\n" * (style == "markdown")
        parts.append(f"{fence}{forest_plot(numbers['table_2'], numbers['margin'])}\n{fence}".rstrip())
    return "\n\n".join(parts + [escaped(f"Note: {note}", style) for note in numbers["notes"]])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("paths", nargs="*", default=["runs"], metavar="PATH", help="logs or folders (default: runs)")
    parser.add_argument("--treatment", default="typhoon", metavar="MASKER", help="(default: typhoon)")
    parser.add_argument("--baseline", nargs="+", default=["random", "whole-word"], metavar="MASKER",
                        help="what it is compared with (default: random whole-word)")
    parser.add_argument("--epoch", choices=["best", "last"], default="best", help="of each stage (default: best)")
    parser.add_argument("--margin", type=float, default=0.01, metavar="X", help="for equivalence (default: 0.01)")
    parser.add_argument("--alpha", type=float, default=0.05, metavar="P", help="of tests and intervals (default: 0.05)")
    parser.add_argument("--format", choices="text markdown latex json".split(), default="text", help="(default: text)")
    parser.error = lambda message: parser.exit(2, f"stats.py: {' '.join(message.split())}; see python stats.py --help\n")
    options = parser.parse_args(arguments)
    options.baseline = [name for name in dict.fromkeys(options.baseline) if name != options.treatment]
    try:
        if not (0 < options.margin < math.inf and 0.001 <= options.alpha < 0.5):
            raise UserError("--margin must be above 0, --alpha from 0.001 to below 0.5")
        print(report(read_logs(options.paths, options.epoch), options), flush=True)
        return 0
    except KeyboardInterrupt:
        print("stats.py: stopped by SIGINT", file=sys.stderr)
        return 130
    except (UserError, OSError, UnicodeError) as error:  # the latter two: standard output takes no more, or not this
        print(f"stats.py: {error}", file=sys.stderr)
        return 2


def report(logs: list[dict], options: argparse.Namespace) -> str:
    """All that the logs say, as tables and notes."""
    notes = [f"{log['path'].name}: its score is NaN and counts nowhere." for log in logs if math.isnan(log["score"])]
    for key in sorted({key for log in logs for key in log["environment"]}):
        values = Counter(str(log["environment"].get(key)) for log in logs)
        if len(values) > 1:
            notes.append(f"Runs differ in {key}: {', '.join(f'{value} in {n}' for value, n in values.items())}.")
    return shown({
        "sample": logs[0]["sample"], "runs": len(logs), **vars(options), "confidence": 100 * (1 - options.alpha),
        "notes": notes, "table_1": summaries(logs, AXES[:5], ("score", "accuracy")),
        "table_2": comparisons(logs, options.treatment, options.baseline, options.margin, options.alpha, notes),
        "table_3": summaries([log for log in logs if log["masker"] == options.treatment], AXES[:5],
                             ("kl_per_token", "masked_fraction", "score")),
        "table_4": ranks(logs)}, options.format)


if __name__ == "__main__":
    sys.exit(main())
