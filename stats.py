"""Is Typhoon better, and how sure can one be? The statistics over the run logs of train.py.

    python stats.py runs/

Two runs of one seed share new heads, the order of the data, dropout and more (see train.py): they
are a pair, and the mean of the paired differences has a t interval and a t test [A: the abstract's
twelve comparisons]. That five seeds find nothing says little by itself. So beside it stand [D: our
decisions] the difference that these pairs would have found with 80% power, the seeds that the
margin would need, and an equivalence test (two one-sided t tests: is the true difference within
the margin?). p values are adjusted by Holm's method, intervals are not.
"""
import argparse
import json
import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations, product
from pathlib import Path
from textwrap import fill

import numpy as np
from scipy.optimize import brentq
from scipy.stats import ncf, rankdata, spearmanr
from scipy.stats import t as student

from glue_data import UserError

SETTING = (  # with a seed: one run
    "task", "model", "objective", "masker", "spread", "corruption", "mlm_epochs")

AXES = {  # the axis in which the two of a pair differ: its treatment, and the baselines
    "masker": ("typhoon", ["random", "whole-word"]),
    "spread": ("1.0", ["0.4"]),
    "objective": ("mae", ["mlm"]),
    "corruption": ("80-10-10", ["mask"]),
    "mlm_epochs": ("3", ["0"]),  # 0: fine-tuned without adaptation
}


# ---- One comparison ----------------------------------------------------------------------------

def paired_test(strata: Sequence[Sequence[float]], margin: float, alpha: float) -> dict:
    """The paired t test, its interval, its power, and the equivalence test (TOST).

    strata: the differences treatment - baseline, one list for each backbone that is pooled. With
    one list this is scipy.stats.ttest_rel. With several, each backbone has a mean of its own and
    all share one variance: the estimate is the mean of the means, with sum(n) - len(strata)
    degrees of freedom.  margin: a true difference below it counts as none.  alpha: of the tests;
    1 - alpha of the interval.  Without a variance (one pair, or all equal) there is no test.
    """
    strata = [np.asarray(stratum, float) for stratum in strata]
    every = np.concatenate(strata)  # (n,)
    centred = np.concatenate([stratum - stratum.mean() for stratum in strata])  # (n,)
    mean = np.mean([stratum.mean() for stratum in strata])
    row = {"n": len(every), "mean": mean, "p": None}
    row["ahead"] = int((every > 0).sum())
    freedom = len(every) - len(strata)
    if freedom == 0 or not centred.any():
        return row | {"finding": "no test"}

    deviation = np.sqrt((centred ** 2).sum() / freedom)
    error = deviation * np.sqrt(sum(1 / len(stratum) for stratum in strata)) / len(strata)
    t = mean / error
    low, high = student.interval(1 - alpha, freedom, mean, error)
    return row | {
        "sd": deviation,
        "low": low,
        "high": high,
        "t": t,
        "degrees_of_freedom": freedom,
        "p": 2 * student.sf(abs(t), freedom),
        "tost_p": student.sf((margin - abs(mean)) / error, freedom),  # TOST: the larger of its two
        "d_z": mean / deviation,
        "detectable": error * detectable_shift(freedom, alpha),
        "seeds_needed": seeds_needed(deviation, len(strata), margin, alpha),
    }


def power(shift: float, freedom: int, alpha: float) -> float:
    """How often the test finds a true mean that lies `shift` standard errors from zero."""
    critical = student.isf(alpha / 2, freedom)
    return ncf.sf(critical ** 2, 1, freedom, shift ** 2)  # t squared is F: both tails in one


def detectable_shift(freedom: int, alpha: float) -> float:
    """How many standard errors from zero is a true mean that is found with 80% power?"""
    highest = 2 * student.isf(alpha / 2, freedom) + 5
    return brentq(lambda shift: power(shift, freedom, alpha) - 0.8, 0.1, highest)


def seeds_needed(deviation: float, strata: int, margin: float, alpha: float) -> int:
    """The fewest seeds with which a true difference of `margin` is found with 80% power."""
    def power_with(seeds):
        error = deviation / np.sqrt(strata * seeds)
        return power(margin / error, strata * (seeds - 1), alpha)

    numbers = range(2, 1_000_000)
    return 2 + bisect_left(numbers, 0.8, key=power_with)


def exact_wilcoxon(differences: Sequence[float]) -> dict[str, float]:
    """Wilcoxon's signed-rank test: the smaller rank sum and its exact two-sided p.

    scipy's exact p allows no ties, so the distribution is built here: differences of zero are left
    out, equal sizes share their mean rank, and a fair coin decides if a rank is in the sum.
    """
    differences = np.array([difference for difference in differences if difference != 0])
    ranks = (2 * rankdata(abs(differences))).astype(int)  # doubled: whole numbers with ties too
    probability = np.ones(1)  # of each rank sum; without a rank it is 0
    for rank in ranks:
        coin = np.zeros(rank + 1)
        coin[[0, rank]] = 0.5
        probability = np.convolve(probability, coin)
    smaller = min(ranks[differences > 0].sum(), ranks[differences < 0].sum())
    p = min(1.0, 2 * probability[:smaller + 1].sum())
    return {"wilcoxon": smaller / 2, "wilcoxon_p": p}


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted by Holm's method: the smallest times n, the next times n - 1, ..."""
    order = np.argsort(p_values)
    stepped = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(stepped).clip(max=1)
    return adjusted.tolist()


def finding(mean: float, p: float, tost_p: float, alpha: float) -> str:
    """Absence of evidence is not evidence of absence; and a difference can be real but small."""
    if p < alpha and tost_p < alpha:
        return "small gain" if mean > 0 else "small loss"
    if p < alpha:
        return "better" if mean > 0 else "worse"
    return "equivalent" if tost_p < alpha else "undecided"


# ---- The logs ----------------------------------------------------------------------------------

def read_log(path: Path, epoch: str) -> dict:
    """What the tables need of one log, with each stage's figures at its "best" or "last" epoch."""
    try:
        text = path.read_text(encoding="utf-8")
        log = json.loads(text, parse_constant=str)  # NaN becomes "NaN", which is no number
        if log["format"] != "typhoon-run-2":
            raise ValueError("format is not typhoon-run-2")
        run = {key: log["identity"][key] for key in (*SETTING, "seed")}
        run["path"] = path
        run["identity"] = log["identity"] | {"sample": log["sample"]}

        classifier = log["classifier"]["epochs"][log["classifier"][f"{epoch}_epoch"] - 1]
        run["metric"] = log["metric"]
        run["score"] = number(classifier, log["metric"])
        run["collapsed"] = number(classifier, "matthews") == 0  # one class was predicted for all

        rates = log["mlm"]["frequent_rates"]
        run["rates"] = {token: number(rates, token) for token in rates}
        if log["mlm"]["epochs"]:
            mlm = log["mlm"]["epochs"][log["mlm"][f"{epoch}_epoch"] - 1]
            kept = log["mlm"]["epochs"][log["mlm"]["best_epoch"] - 1]  # its model has the ranks
            run["dev_loss"] = number(kept, "dev_loss")
            if mlm["band"] is not None:  # the masker has a rate for each type
                run["kl_mean"] = number(mlm, "kl_mean")
                run["kl_last"] = number(mlm, "kl_last")
                run |= {share: number(mlm["band"], share) for share in ("5%", "50%", "95%")}

        run["ranks"] = []
        for record in log["effective_rank"]:
            setting = {key: record[key] for key in ("input", "tokens", "stage")}
            run["ranks"].append(setting | {"layers": np.array(record["layers"], float)})
        return run
    except Exception as error:
        raise UserError(f"{path}: is no whole run log ({type(error).__name__}: {error}); "
                        "move it away, and run again what it was") from error


def number(record: dict, key: str) -> float:
    if not isinstance(record[key], (int, float)):
        raise ValueError(f"{key} is {record[key]!r:.40}")
    return record[key]


def read_logs(paths: Iterable[str | Path], epoch="best", axis="masker") -> list[dict]:
    """The runs of these files, and of these folders (their own *.json), that belong together.

    UserError: no log, one run twice, or runs that differ in more than their setting and seed.
    """
    runs = []
    for path in map(Path, paths):
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files or not path.exists():
            raise UserError(f"{path} holds no run log (*.json); train.py writes them to its --out")
        runs += [read_log(file, epoch) for file in files]

    may_differ = {"task", "model", "objective", "masker", "spread", "seed", axis}
    of = {"data": "task", "backbone": "model", "method": "masker", "decoder_layers": "objective"}
    first = {}  # a run's name, or an option (of its task, model, ...) -> the run that had it first
    for run in runs:
        name = tuple(run[key] for key in (*SETTING, "seed"))
        other = first.setdefault(name, run)
        if other is not run:
            raise UserError(f"{other['path']} and {run['path']} are one run; keep one of them")
        for option in run["identity"].keys() - may_differ:
            other = first.setdefault((option, run.get(of.get(option))), run)
            if run["identity"][option] != other["identity"][option]:
                raise UserError(f"{other['path']} and {run['path']} differ in {option}, so they "
                                "are no pair; name only logs that belong together")
    return runs


# ---- Which runs are pairs ----------------------------------------------------------------------

def are_pair(one: dict, other: dict, axis: str) -> bool:
    """The same seed and setting but for the axis; a run that uses no spread goes with any."""
    for key in (*SETTING, "seed"):
        without_spread = key == "spread" and None in (one[key], other[key])
        if one[key] != other[key] and key != axis and not without_spread:
            return False
    return True


def find_pairs(runs: list[dict], options: argparse.Namespace) -> list[dict]:
    """Each pair: its setting, the value of its baseline, its seed and the difference."""
    axis = options.compare
    treated = [run for run in runs if str(run[axis]) == options.treatment]
    baselines = set(options.baseline) - {options.treatment}
    others = [run for run in runs if str(run[axis]) in baselines]
    pairs = []
    for one, other in product(treated, others):
        if are_pair(one, other, axis):
            setting = {key: other[key] if one[key] is None else one[key] for key in SETTING}
            pairs.append(setting | {
                "baseline": other[axis],
                "seed": one["seed"],
                "difference": round(one["score"] - other["score"], 12),  # the rest is rounding
                "baseline_score": other["score"],
                "collapsed": one["collapsed"] or other["collapsed"],
            })
    return pairs


def grouped(rows: Iterable[dict], keys: Iterable[str]) -> list[tuple[dict, list]]:
    """[({key: value}, the rows that have these values)], in the order of the values."""
    groups = {}
    for row in sorted(rows, key=lambda row: [str(row[key]) for key in keys]):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [(dict(zip(keys, values)), members) for values, members in groups.items()]


# ---- The tables, each a list of rows -----------------------------------------------------------

def mean_of(rows: list[dict], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return np.mean(values) if values else None


def scores(runs: list[dict]) -> list[dict]:
    """Table 1: the scores over the seeds, and how far from uniform the masking was."""
    rows = []
    for setting, group in grouped(runs, SETTING):
        row = setting | {"n": len(group)}
        if len(group) > 1:
            row["sd"] = np.std([run["score"] for run in group], ddof=1)
        for key in ("score", "kl_mean", "kl_last", "5%", "50%", "95%"):
            row[key] = mean_of(group, key)
        row["agree"] = agreement([run["rates"] for run in group])
        rows.append(row)
    return rows


def agreement(rates: list[dict[str, float]]) -> float | None:
    """Do two seeds rank the tokens alike? Spearman's correlation, mean over all pairs of seeds."""
    correlations = []
    for one, other in combinations(rates, 2):
        common = sorted(one.keys() & other.keys())
        columns = [[side[token] for token in common] for side in (one, other)]
        if all(len(set(column)) > 1 for column in columns):  # uniform masking ranks nothing
            correlations.append(spearmanr(*columns).statistic)
    return np.mean(correlations) if correlations else None


def comparisons(pairs: list[dict], options: argparse.Namespace) -> tuple[list, list]:
    """Tables 2 and 3, and what the comparisons say together: a sentence for each family of tests.

    Each comparison; again without collapsed runs, and with the best baseline; backbones pooled.
    A family is all tasks, backbones and baselines of one spread, objective and corruption: the
    paper's twelve are 2 x 3 x 2.
    """
    test = partial(paired_test, margin=options.margin, alpha=options.alpha)
    keys = [key for key in SETTING if key != options.compare]
    each = []
    again = []  # shown, but no tests more
    for setting, group in grouped(pairs, [*keys, "baseline"]):
        differences = {pair["seed"]: pair["difference"] for pair in group}
        values = list(differences.values())
        row = {"kind": "each", **setting, "differences": differences}
        row |= test([values]) | exact_wilcoxon(values)
        row["baseline_mean"] = mean_of(group, "baseline_score")
        row["lowest"] = min(values)
        row["highest"] = max(values)
        each.append(row)

        rest = [pair["difference"] for pair in group if not pair["collapsed"]]
        if 0 < len(rest) < len(group):
            starred = {"kind": "without collapsed", "baseline": f"{setting['baseline']} *"}
            again.append(setting | starred | test([rest]) | {"finding": None})

    pooled = []
    for setting, group in grouped(each, [key for key in (*keys, "baseline") if key != "model"]):
        if len(group) > 1:
            row = setting | {"kind": "pooled", "model": f"{len(group)} pooled"}
            pooled.append(row | test([list(one["differences"].values()) for one in group]))

    family = [key for key in keys if key not in ("task", "model")]  # its tests differ in these
    summary = []
    for setting, rows in grouped(each, family):
        summary.append(f"{where(setting)}: {adjust(rows, options.margin, options.alpha)}")
    for _, rows in grouped(pooled, family):
        adjust(rows, options.margin, options.alpha)

    for _, group in grouped(each, keys):
        if len(group) > 1:
            row = max(group, key=lambda row: row["baseline_mean"])
            best = {"kind": "best", "baseline": f"best of {len(group)}"}
            again.append(row | best | {"p_holm": None, "finding": None})
    return each + again + pooled, summary


def adjust(rows: list[dict], margin: float, alpha: float) -> str:
    """Holm's method over one family of tests; what they find, each alone and all in a sentence."""
    rows = [row for row in rows if row["p"] is not None]
    differ = holm([row["p"] for row in rows])
    equal = holm([row["tost_p"] for row in rows])
    for row, p, tost_p in zip(rows, differ, equal):
        row["p_holm"] = p
        row["tost_p_holm"] = tost_p
        row["finding"] = finding(row["mean"], p, tost_p, alpha)
    significant = sum(row["p"] < alpha for row in rows)
    adjusted = sum(p < alpha for p in differ)
    with_zero = sum(row["low"] <= 0 <= row["high"] for row in rows)
    equivalent = sum(p < alpha for p in equal)
    return (f"{significant} of {len(rows)} comparisons significant (after Holm: {adjusted}), "
            f"{with_zero} intervals contain zero, {equivalent} shown equivalent within {margin:g}.")


def ranks(runs: list[dict]) -> list[dict]:
    """Table 4: effective ranks, mean over the seeds; the objectives of one stage stand together."""
    order = {"before": 1, "adapted": 2, "fine-tuned": 3}
    records = [run | record | {"order": order.get(record["stage"])}
               for run in runs for record in run["ranks"]]
    keys = [key for key in SETTING if key != "objective"]
    keys += ["input", "tokens", "order", "stage", "objective"]
    rows = []
    for setting, group in grouped(records, keys):
        layers = np.mean([record["layers"] for record in group], axis=0).tolist()
        row = setting | {"n": len(group), "layers": layers}
        row["rank of each layer"] = " ".join(f"{rank:.0f}" for rank in layers)
        if setting["stage"] == "adapted":
            row["dev_loss"] = mean_of(group, "dev_loss")
        rows.append(row)
    return rows


# ---- How they are shown ------------------------------------------------------------------------

# A table's columns: {key of the row, which is the heading: format}; "" is text, to the left.
SCORE_COLUMNS = {
    "n": "d", "score": ".4f", "sd": ".4f", "kl_mean": ".1e", "kl_last": ".1e",
    "5%": ".3f", "50%": ".3f", "95%": ".3f", "agree": ".2f",
}
COMPARISON_COLUMNS = {
    "baseline": "", "mean": "+.4f", "low": "+.4f", "high": "+.4f", "p_holm": ".2g",
    "detectable": ".4f", "ahead": "d", "n": "d", "finding": "",
}
LUCK_COLUMNS = {"baseline": "", "n": "d", "lowest": "+.4f", "highest": "+.4f", "seeds_needed": "d"}
RANK_COLUMNS = {"input": "", "tokens": "", "stage": "", "dev_loss": ".2f", "rank of each layer": ""}

HOW_TO_READ_1 = """\
KL from uniform masking in nats per token, over the epoch and at its end; 5, 50, 95% of the tokens
have no higher rate. agree: do two seeds rank the frequent tokens alike (1), or do their rankings
have nothing in common (0)? By their rates of the last epoch of adaptation."""
HOW_TO_READ_2 = """\
low, high: the {percent:g}% interval, unadjusted. p_holm, finding: by Holm's method over the
comparisons of one spread; pooled rows among themselves. detectable: the true difference that so
many pairs find with 80% power. better, worse: p_holm below {alpha:g}; equivalent: shown to lie
within {margin:g}; small gain, small loss: both; undecided: neither. Again, and no tests more: best
of 2, the baseline of the higher mean score; *, without the pairs in which a run collapsed."""
HOW_TO_READ_3 = """\
With one seed one might have reported anything from the lowest to the highest. seeds_needed: to
find a true difference of {margin:g} with 80% power. The 2023 code's own lone runs (random /
whole-word / Typhoon): MRPC F1 .777 / .825 / .850, CoLA Matthews .150 / .202 / .160."""
HOW_TO_READ_4 = """\
dev_loss: the objective's own, of the adapted model. A rank after little learning says little."""

STYLES = {  # what stands before, between and after the cells of a line
    "text": ("", "  ", ""),
    "markdown": ("| ", " | ", " |"),
    "latex": ("", " & ", r" \\"),
}


def table(columns: dict[str, str], rows: list[dict], style: str) -> str:
    """The rows, aligned for a terminal ("text"), a README ("markdown") or a paper ("latex")."""
    aligned = []
    for key, form in columns.items():
        cells = [key]
        for row in rows:
            cells.append("-" if row.get(key) is None else format(row[key], form))
        cells = [escaped(cell, style) for cell in cells]
        width = max(map(len, cells))
        aligned.append([cell.rjust(width) if form else cell.ljust(width) for cell in cells])

    start, between, end = STYLES[style]
    lines = [(start + between.join(cells) + end).rstrip() for cells in zip(*aligned)]
    if style == "latex":
        sides = "".join("r" if form else "l" for form in columns.values())
        lines.insert(1, r"\hline")
        return "\n".join([rf"\begin{{tabular}}{{{sides}}}", *lines, r"\end{tabular}"])
    lines.insert(1, start + between.join("-" * len(cells[0]) for cells in aligned) + end)
    return "\n".join(lines)


def escaped(text: str, style: str) -> str:
    if style == "latex":
        text = re.sub(r"([&%$#_{}])", r"\\\1", text)
        text = re.sub(r"(?<!\w)-(?=\d)", "$-$", text)  # a minus, not a hyphen
    return text


def where(setting: dict) -> str:
    shown = [key for key in SETTING if setting.get(key) is not None]
    return ", ".join(f"{key} {setting[key]}" for key in shown)


def report(runs: list[dict], options: argparse.Namespace) -> str:
    """All that the runs say."""
    of_settings = scores(runs)
    compared, summary = comparisons(find_pairs(runs, options), options)
    of_layers = ranks(runs)
    same = {}  # what holds for all runs is said once
    for key in SETTING:
        values = {run[key] for run in runs} - {None}
        if len(values) < 2:
            same[key] = values.pop() if values else None
    metrics = " and ".join(sorted({f"{run['metric']} ({run['task']})" for run in runs}))
    notes = [f"{len(runs)} runs, all: {where(same)}. Scores: {metrics}, {options.epoch} epoch."]
    if runs[0]["identity"]["sample"]:
        notes.insert(0, "SAMPLE: made-up data; these runs say nothing about MRPC or CoLA.")
    notes += summary or [f"There is no pair of {options.compare} {options.treatment} and "
                         f"{' or '.join(options.baseline)}."]
    if collapsed := [run["path"].name for run in runs if run["collapsed"]]:
        notes.append("Collapsed into one class (Matthews exactly 0 at the reported epoch), but "
                     f"counted: {', '.join(collapsed)}")
    if options.format == "json":
        everything = {"notes": notes, "options": vars(options), "scores": of_settings,
                      "comparisons": compared, "effective_rank": of_layers}
        return json.dumps(everything, indent=1, allow_nan=False)

    difference = f"{options.treatment} minus baseline"
    each = [row for row in compared if row["kind"] == "each"]
    tables = (
        ("Table 1. Scores and masking over the seeds", SCORE_COLUMNS, of_settings, HOW_TO_READ_1),
        (f"Table 2. {difference}, paired by seed", COMPARISON_COLUMNS, compared, HOW_TO_READ_2),
        (f"Table 3. The luck of one seed: {difference}", LUCK_COLUMNS, each, HOW_TO_READ_3),
        ("Table 4. Effective rank", RANK_COLUMNS, of_layers, HOW_TO_READ_4),
    )
    parts = [escaped(fill(note, 98), options.format) for note in notes]
    for title, columns, rows, how_to_read in tables:
        if rows:
            settings = {key: "" for key in SETTING if key in rows[0] and key not in same}
            below = how_to_read.format(percent=100 - 100 * options.alpha, **vars(options))
            parts.append(escaped(title, options.format))
            parts.append(table(settings | columns, rows, options.format))
            parts.append(escaped(below, options.format))
    return "\n\n".join(parts)


# ---- The command -------------------------------------------------------------------------------

def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"stats.py: {' '.join(message.split())}\n")
    add = parser.add_argument
    add("paths", nargs="*", default=["runs"], help="run logs, or folders of them (runs)")
    add("--compare", choices=list(AXES), default="masker", help="where a pair differs (masker)")
    add("--treatment", help="its value in one run: typhoon, or 1.0, mae, 80-10-10")
    add("--baseline", nargs="+", help="and in the other: random whole-word, or 0.4, mlm, mask")
    add("--epoch", choices=["best", "last"], default="best",
        help="the one to report, of each stage; fine-tuning starts from the best one (best)")
    add("--margin", type=float, default=0.01, help="a smaller difference is none (0.01)")
    add("--alpha", type=float, default=0.05, help="of tests and intervals (0.05)")
    add("--format", choices=[*STYLES, "json"], default="text", help="of the tables (text)")
    options = parser.parse_args(arguments)
    if not (0 < options.margin < 1 and 0.001 <= options.alpha <= 0.4):
        parser.error("--margin must lie between 0 and 1, --alpha between 0.001 and 0.4")
    treatment, baselines = AXES[options.compare]
    options.treatment = options.treatment or treatment
    options.baseline = options.baseline or baselines
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    try:
        runs = read_logs(options.paths, options.epoch, options.compare)
    except UserError as error:
        print(f"stats.py: {error}", file=sys.stderr)
        return 2
    print(report(runs, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
