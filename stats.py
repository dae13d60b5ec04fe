"""Is Typhoon better, and how sure can one be? The statistics over the run logs of train.py.

    python stats.py runs/

Two runs of one seed share the classifier's first weights, the order of the data and dropout, so they
are a pair, and what is tested is the mean of the differences: a t interval and a paired t test [A: the
abstract's twelve comparisons]. A test that finds nothing says little about five seeds, so beside it
stand [D: our decisions] the difference that n pairs would have found with 80% power, the number of
seeds that the margin would need, and an equivalence test (two one-sided t tests: is the true difference
within the margin?). p values are adjusted by Holm's method over the comparisons of one table of the
paper; intervals are not. Rows pooled over the backbones let each have its own mean difference and share
one variance. Collapsed runs are named, and count like all others.

From top to bottom: one comparison; reading the logs; which runs are pairs; the tables; showing them.
"""
import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct, rankdata, spearmanr
from scipy.stats import t as student

from glue_data import UserError

SETTING = ("task", "model", "objective", "masker", "spread", "corruption")  # with a seed: one run
DEFAULTS = {  # --compare: the treatment, the baselines
    "masker": ("typhoon", ["random", "whole-word"]),
    "spread": ("1.0", ["0.4"]),
    "objective": ("mae", ["mlm"]),
    "corruption": ("80-10-10", ["mask"]),
}
LONE_RUNS = (  # the paper's repository, code of its first version: each figure is one run of one seed
    "The 2023 code's own results were such single runs (random / whole-word / Typhoon): "
    "MRPC F1 .777 / .825 / .850, CoLA Matthews .150 / .202 / .160.")


# ---- One comparison ----------------------------------------------------------------------------

def compare(strata: Sequence[Sequence[float]], margin: float, alpha: float) -> dict:
    """Is the mean of paired differences zero, and how far from zero could it be?

    strata: the differences treatment - baseline, one list for each backbone that is pooled. With one
    list this is the paired t test (scipy.stats.ttest_rel). With several, the estimate is the mean of
    their means, and the variance is that within the lists: sum(n) - len(strata) degrees of freedom.
    margin: a true difference below it counts as none.  alpha: of the tests, 1 - alpha of the interval.
    Without a variance (one pair, or all differences equal) there is no test, and `finding` says so.
    """
    strata = [np.asarray(stratum, float) for stratum in strata]
    every = np.concatenate(strata)  # (n,)
    mean = float(np.mean([stratum.mean() for stratum in strata]))
    row = {"n": len(every), "ahead": int((every > 0).sum()), "mean": mean, "p": None, "tost_p": None}
    freedom = len(every) - len(strata)
    if freedom == 0:
        return row | {"finding": "one pair"}
    if all(np.ptp(stratum) == 0 for stratum in strata):
        return row | {"finding": "all equal"}
    variance = sum(((stratum - stratum.mean()) ** 2).sum() for stratum in strata) / freedom
    deviation = float(np.sqrt(variance))
    error = deviation * np.sqrt(sum(1 / len(stratum) for stratum in strata)) / len(strata)
    low, high = student.interval(1 - alpha, freedom, mean, error)
    return row | {
        "sd": deviation,
        "low": float(low),
        "high": float(high),
        "t": float(mean / error),
        "degrees_of_freedom": freedom,
        "p": float(2 * student.sf(abs(mean) / error, freedom)),
        "tost_p": float(student.sf((margin - abs(mean)) / error, freedom)),  # the larger of the two
        "d_z": mean / deviation,
        "detectable": float(noncentrality(freedom, alpha) * error),
        "seeds_needed": seeds_needed(deviation, len(strata), margin, alpha),
    }


@cache
def noncentrality(freedom: int, alpha: float, power: float = 0.8) -> float:
    """How many standard errors must the true mean be from zero to be found with this power?"""
    critical = student.isf(alpha / 2, freedom)

    def lacking(shift):  # both tails by sf: cdf is NaN where the other tail is next to nothing
        return nct.sf(critical, freedom, shift) + nct.sf(critical, freedom, -shift) - power

    return brentq(lacking, 0, 2 * critical + 5)


def seeds_needed(deviation: float, strata: int, margin: float, alpha: float) -> int:
    """The fewest seeds with which a true difference of `margin` would be found with 80% power."""
    many = noncentrality(100_000, alpha) * deviation / margin  # with few seeds it takes only more
    seeds = max(2, int(many ** 2 / strata))
    while noncentrality(strata * (seeds - 1), alpha) * deviation > margin * np.sqrt(strata * seeds):
        seeds += 1
    return seeds


def exact_wilcoxon(differences: Sequence[float]) -> tuple[float, float] | None:
    """Wilcoxon's signed-rank test: the smaller rank sum, and its exact two-sided p.

    scipy's exact p takes no ties, so the distribution is built here: differences of zero are left
    out, equal sizes share their mean rank, and the rank sum adds each rank or not, by a fair coin.
    """
    differences = np.asarray([d for d in differences if d != 0])
    if len(differences) == 0:
        return None
    ranks = (2 * rankdata(abs(differences))).astype(int)  # doubled: whole numbers with ties too
    probability = np.ones(1)  # of each rank sum: at first it is 0
    for rank in ranks:
        coin = np.zeros(rank + 1)
        coin[[0, rank]] = 0.5
        probability = np.convolve(probability, coin)
    smaller = min(ranks[differences > 0].sum(), ranks[differences < 0].sum())
    return smaller / 2, min(1.0, 2 * float(probability[:smaller + 1].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted by Holm's step-down method."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)  # the smallest times n, the next times n - 1, ...
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(factors * np.asarray(p_values)[order]).clip(max=1)
    return adjusted.tolist()


def finding(mean: float, p: float, tost_p: float, alpha: float) -> str:
    """Absence of evidence is not evidence of absence; and a difference can be real but small."""
    if p < alpha and tost_p < alpha:
        return "small gain" if mean > 0 else "small loss"
    if p < alpha:
        return "better" if mean > 0 else "worse"
    return "equivalent" if tost_p < alpha else "undecided"


# ---- The logs ----------------------------------------------------------------------------------

TEXT, WHOLE, OBJECT, LIST, NUMBER = (str,), (int,), (dict,), (list,), (int, float)
NUMBER_OR_NULL = (int, float, type(None))


def take(path: Path, log, kinds: tuple[type, ...], *keys):
    """The value of a log under these keys, one inside the other.

    UserError: there is none, or it is of another type, NaN or infinite.
    """
    value = log
    try:
        for key in keys:
            value = value[key]
        found = repr(value)[:40]
        if type(value) in kinds and (type(value) not in NUMBER or abs(value) < 1e9):
            return value
    except (LookupError, TypeError):
        found = "missing"
    name = ".".join(map(str, keys)) or "the log"
    raise UserError(f"{path}: {name} is {found}; move it away and run again")


def read_log(path: Path, epoch: str) -> dict:
    """What the tables need of one log, with each stage's figures at its "best" or "last" epoch."""
    try:
        log = json.loads(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); give logs or their folder") from None
    get = partial(take, path, log)
    if get(TEXT, "format") != "typhoon-run-2":
        raise UserError(f"{path}: its format is not typhoon-run-2; move it away and run again")

    last = ("classifier", "epochs", get(WHOLE, "classifier", f"{epoch}_epoch") - 1)
    run = {
        "path": path,
        "sample": get((bool,), "sample"),
        "identity": get(OBJECT, "identity"),
        "environment": get(OBJECT, "environment"),
        "seed": get(WHOLE, "identity", "seed"),
        "spread": get(NUMBER_OR_NULL, "identity", "spread"),
        "metric": get(TEXT, "metric"),
        "score": get(NUMBER, *last, get(TEXT, "metric")),
        "collapsed": get(NUMBER, *last, "matthews") == 0,  # one class was predicted for all
        "rates": get(OBJECT, "mlm", "frequent_rates"),
        "ranks": get(LIST, "effective_rank"),
        "kl_mean": None, "kl_last": None, "5%": None, "50%": None, "95%": None, "dev_loss": None,
    }
    run |= {key: get(TEXT, "identity", key) for key in SETTING if key != "spread"}
    if number := get(WHOLE, "mlm", f"{epoch}_epoch"):  # 0: there was no adaptation
        last = ("mlm", "epochs", number - 1)
        run |= {key: get(NUMBER_OR_NULL, *last, key) for key in ("kl_mean", "kl_last")}
        if get((dict, type(None)), *last, "band"):
            run |= {key: get(NUMBER, *last, "band", key) for key in ("5%", "50%", "95%")}
    if number := get(WHOLE, "mlm", "best_epoch"):  # the ranks are those of the model that was kept
        run["dev_loss"] = get(NUMBER, "mlm", "epochs", number - 1, "dev_loss")
    for token in run["rates"]:
        get(NUMBER, "mlm", "frequent_rates", token)
    for i in range(len(run["ranks"])):
        for key in ("stage", "input", "tokens"):
            get(TEXT, "effective_rank", i, key)
        for layer in range(len(get(LIST, "effective_rank", i, "layers"))):
            get(NUMBER, "effective_rank", i, "layers", layer)
    return run


def read_logs(paths: Iterable[str | Path], epoch: str = "best", compared: str = "masker") -> list[dict]:
    """The runs of these files, and of these folders (their own *.json), that belong together.

    UserError: no log, one run twice, or runs that differ in what is neither setting nor seed.
    """
    runs = []
    for path in map(Path, paths):
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.glob("*.json") if file.name[0] != ".")
        if not files:
            raise UserError(f"{path} holds no run log (*.json); train.py writes them to its --out")
        runs += [read_log(file, epoch) for file in files]

    first = {}  # what must agree -> its value, and the log that was first to have it
    options = sorted({option for run in runs for option in run["identity"]})
    for run in runs:
        one = tuple(run[key] for key in (*SETTING, "seed"))
        if one in first:
            raise UserError(f"{first[one][1]} and {run['path']} are one run; keep one of them")
        first[one] = (None, run["path"])
        for fact, value in facts(run, options, compared).items():
            other, path = first.setdefault(fact, (value, run["path"]))
            if value != other:
                raise UserError(f"{path} and {run['path']} differ in {fact}; such runs are no pairs: "
                                "name the logs that belong together, or move one away")
    return runs


def facts(run: dict, options: list[str], compared: str) -> dict:
    """By name, what must be the same in all runs that are read together."""
    shared_by = {"data": "task", "backbone": "model", "method": "masker", "decoder_layers": "objective"}
    free = {"task", "model", "objective", "masker", "spread", "seed", compared}
    agreed = {"sample": run["sample"]}
    for option in options:
        if option in shared_by:
            agreed[f"{option} ({run[shared_by[option]]})"] = run["identity"].get(option)
        elif option not in free:
            agreed[option] = run["identity"].get(option)
    return agreed


# ---- Which runs are pairs ----------------------------------------------------------------------

def grouped(runs: list[dict], keys: Sequence[str]) -> list[tuple[dict, list[dict]]]:
    """[({key: value}, the runs that have these values)], in the order of the values; null first."""
    groups = {}
    for run in sorted(runs, key=lambda run: [(run[key] is not None, run[key]) for key in keys]):
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)
    return [(dict(zip(keys, values)), group) for values, group in groups.items()]


def lend(runs: list[dict], keys: Sequence[str]) -> list[dict]:
    """A run that does not use the spread (null) stands at every spread that the others have."""
    lent = []
    for _, group in grouped(runs, [key for key in keys if key != "spread"]):
        spreads = {run["spread"] for run in group} - {None}
        for run in group:
            own = spreads if run["spread"] is None and spreads else {run["spread"]}
            lent += [run | {"spread": spread} for spread in own]
    return lent


def pairs(runs: list[dict], axis: str, treatment, baselines: list, notes: list[str]) -> list[tuple]:
    """[(setting, baseline, {seed: (run of the treatment, run of the baseline)})]

    The two differ in their value on the axis and in nothing else. What has no partner is noted.
    """
    found = []
    keys = [key for key in SETTING if key != axis]
    chosen = [run for run in runs if run[axis] in (treatment, *baselines)]
    if not chosen:
        notes.append(f"No runs to compare: none has {axis} {treatment}.")
    for setting, group in grouped(lend(chosen, keys), keys):
        where = " ".join(str(value) for value in setting.values() if value is not None)
        treated = {run["seed"]: run for run in group if run[axis] == treatment}
        for baseline in baselines:
            others = {run["seed"]: run for run in group if run[axis] == baseline}
            for value, lacking in ((treatment, others.keys() - treated.keys()),
                                   (baseline, treated.keys() - others.keys())):
                if lacking:
                    notes.append(f"{where}: no {value} run for seed {listed(lacking)}.")
            both = sorted(treated.keys() & others.keys())
            if both:
                found.append((setting, baseline, {seed: (treated[seed], others[seed]) for seed in both}))
    return found


# ---- The tables, each a list of rows -----------------------------------------------------------

def scores(runs: list[dict]) -> list[dict]:
    """Tables 1 and 3: scores over the seeds, and how far from uniform their masking was."""
    rows = []
    for setting, group in grouped(runs, SETTING):
        by_seed = {run["seed"]: run["score"] for run in sorted(group, key=lambda run: run["seed"])}
        row = setting | {"metric": group[0]["metric"], "n": len(group), "scores": by_seed}
        row["mean"] = float(np.mean(list(by_seed.values())))
        row["sd"] = float(np.std(list(by_seed.values()), ddof=1)) if len(group) > 1 else None
        for key in ("kl_mean", "kl_last", "5%", "50%", "95%"):
            values = [run[key] for run in group if run[key] is not None]
            row[key] = float(np.mean(values)) if values else None
        row["agreement"] = agreement([run["rates"] for run in group])
        if collapsed := sorted(run["seed"] for run in group if run["collapsed"]):
            row |= {"collapsed": len(collapsed), "collapsed_seeds": collapsed}
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
    return float(np.mean(correlations)) if correlations else None


def comparisons(runs: list[dict], options: argparse.Namespace, notes: list[str]) -> list[dict]:
    """Table 2: each comparison; the one with the best baseline of a setting again; and pooled rows."""
    test = partial(compare, margin=options.margin, alpha=options.alpha)
    each = []
    for setting, baseline, paired in pairs(runs, options.compare, options.treatment,
                                           options.baseline, notes):
        # Scores are counts over a thousand examples: what is smaller than 1e-12 is rounding.
        differences = {seed: round(treated["score"] - other["score"], 12)
                       for seed, (treated, other) in paired.items()}
        values = list(differences.values())
        row = {"kind": "each", **setting, "baseline": baseline, **test([values])}
        row["baseline_mean"] = float(np.mean([other["score"] for _, other in paired.values()]))
        row["wilcoxon"] = exact_wilcoxon(values)
        row["differences"] = differences
        row["one_seed"] = one_seed(differences)
        collapsed = [seed for seed, both in paired.items() if any(run["collapsed"] for run in both)]
        rest = [difference for seed, difference in differences.items() if seed not in collapsed]
        if collapsed and rest:
            row["without_collapsed"] = test([rest])
            notes.append(f"{named(row, options)}: {interval(row)} with all seeds, without seed "
                         f"{listed(collapsed)}: {interval(row['without_collapsed'])}.")
        each.append(row)

    keys = [key for key in SETTING if key != options.compare]
    best = []
    for _, group in grouped(each, keys):
        if len(group) > 1:
            row = max(group, key=lambda row: row["baseline_mean"])
            best.append(row | {"kind": "best", "baseline": f"best: {row['baseline']}", "finding": None})

    pooled = []
    for setting, group in grouped(each, [key for key in keys if key != "model"] + ["baseline"]):
        if len(group) > 1:
            row = test([list(row["differences"].values()) for row in group])
            pooled.append({"kind": "pooled", **setting, "model": f"{len(group)} pooled", **row})

    for kind in (each, pooled):
        for _, family in grouped(kind, [key for key in keys if key not in ("task", "model")]):
            adjust(family, options.alpha)
    return each + best + pooled


def adjust(family: list[dict], alpha: float) -> None:
    """Holm's method over the tests of one family, of difference and of equivalence apart."""
    tested = [row for row in family if row["p"] is not None]
    adjusted = zip(holm([row["p"] for row in tested]), holm([row["tost_p"] for row in tested]))
    for row, (p, tost_p) in zip(tested, adjusted):
        row |= {"p_holm": p, "tost_p_holm": tost_p}
        row["finding"] = finding(row["mean"], p, tost_p, alpha)


def ranks(runs: list[dict]) -> list[dict]:
    """Table 4: effective ranks, mean over the seeds; the objectives of one stage stand together."""
    keys = ("task", "model", "masker", "spread", "corruption", "input", "tokens", "stage", "objective")
    rows = []
    for setting, group in grouped([run | record for run in runs for record in run["ranks"]], keys):
        layers = np.mean([record["layers"] for record in group], axis=0).tolist()
        row = setting | {"n": len(group), "layers": layers, "dev_loss": None}
        losses = [record["dev_loss"] for record in group if record["dev_loss"] is not None]
        if losses and setting["stage"] == "adapted":
            row["dev_loss"] = float(np.mean(losses))
        rows.append(row | {"by_layer": " ".join(f"{rank:.0f}" for rank in layers)})
    return rows


# ---- In words ----------------------------------------------------------------------------------

def listed(values: Iterable) -> str:
    return ", ".join(str(value) for value in sorted(values))


def named(row: dict, options: argparse.Namespace) -> str:
    where = " ".join(str(row[key]) for key in SETTING if row.get(key) is not None)
    return f"{where}, {options.treatment} - {row['baseline']}"


def interval(row: dict) -> str:
    if row["p"] is None:
        return f"{row['mean']:+.4f}, no interval ({row['finding']})"
    return f"{row['mean']:+.4f}, interval {row['low']:+.4f} to {row['high']:+.4f}"


def one_seed(differences: dict[int, float]) -> str:
    lowest = min(differences, key=differences.get)
    highest = max(differences, key=differences.get)
    return (f"anything from {differences[lowest]:+.4f} (seed {lowest}) "
            f"to {differences[highest]:+.4f} (seed {highest})")


def in_one_sentence(rows: list[dict], options: argparse.Namespace) -> list[str]:
    """What the comparisons say together: one sentence for each family of them."""
    sentences = []
    keys = [key for key in SETTING if key not in ("task", "model", options.compare)]
    tested = [row for row in rows if row["kind"] == "each" and row["p"] is not None]
    for family, group in grouped(tested, keys):
        significant = sum(row["p"] < options.alpha for row in group)
        adjusted = sum(row["p_holm"] < options.alpha for row in group)
        with_zero = sum(row["low"] <= 0 <= row["high"] for row in group)
        equivalent = sum(row["tost_p_holm"] < options.alpha for row in group)
        where = ", ".join(f"{key} {value}" for key, value in family.items() if value is not None)
        sentences.append(
            f"{where}: {significant} of {len(group)} comparisons significant (after Holm: {adjusted}), "
            f"{with_zero} intervals contain zero, {equivalent} shown equivalent within "
            f"{options.margin:g}.")
    return sentences


def explained(rows: list[dict], options: argparse.Namespace) -> list[str]:
    """How to read Table 2."""
    notes = [
        "Intervals are unadjusted, p and findings adjusted (Holm, over the comparisons that differ in "
        "task, model and baseline only).",
        f"Findings: better or worse, p below {options.alpha:g}; equivalent, the difference is shown to "
        f"be within {options.margin:g}; small gain or loss, both; undecided, neither.",
        "Detectable: the true difference that so many pairs would find with 80% power."]
    if any(row["kind"] == "best" for row in rows):
        notes.append("The best baseline is the one with the higher mean score: a comparison of the "
                     "rows above again, chosen by its result, so it is not tested again.")
    if any(row["kind"] == "pooled" for row in rows):
        notes.append("Pooled rows: each backbone has its own mean difference, the variance is that "
                     "within backbones; they are adjusted among themselves.")
    return notes


def about_runs(runs: list[dict]) -> list[str]:
    """What a reader must know of the runs: collapsed ones, and environments that differ."""
    notes = []
    for run in runs:
        if run["collapsed"]:
            notes.append(f"{run['path'].name} collapsed into one class (Matthews exactly 0 at the "
                         "reported epoch); it counts in every result.")
    for key in sorted({key for run in runs for key in run["environment"]}):
        values = Counter(str(run["environment"].get(key)) for run in runs)
        if len(values) > 1:
            split = ", ".join(f"{value} in {number}" for value, number in values.items())
            notes.append(f"Runs differ in {key}: {split}.")
    return notes


# ---- How they are shown ------------------------------------------------------------------------

# Columns: heading, key of the row, format (without one it is a text, aligned to the left). A column
# whose key no row has is left out; a setting that is the same in all rows goes into the title.
SETTINGS = [(key, key, "") for key in SETTING]
SCORES = SETTINGS + [
    ("metric", "metric", ""), ("n", "n", "d"), ("mean", "mean", ".4f"), ("sd", "sd", ".4f"),
    ("collapsed", "collapsed", "d")]
COMPARISONS = SETTINGS + [
    ("baseline", "baseline", ""), ("mean", "mean", "+.4f"), ("low", "low", "+.4f"),
    ("high", "high", "+.4f"), ("p", "p_holm", ".2g"), ("detectable", "detectable", ".4f"),
    ("ahead", "ahead", "d"), ("of", "n", "d"), ("finding", "finding", "")]
MASKING = SETTINGS + [
    ("mean KL", "kl_mean", ".1e"), ("last KL", "kl_last", ".1e"), ("5%", "5%", ".3f"),
    ("50%", "50%", ".3f"), ("95%", "95%", ".3f"), ("agree", "agreement", ".2f"), ("n", "n", "d"),
    ("score", "mean", ".4f"), ("sd", "sd", ".4f")]
RANKS = SETTINGS[:2] + SETTINGS[3:] + [
    ("input", "input", ""), ("tokens", "tokens", ""), ("stage", "stage", ""),
    ("objective", "objective", ""), ("dev loss", "dev_loss", ".2f"), ("by layer", "by_layer", "")]
LUCK = SETTINGS + [
    ("baseline", "baseline", ""), ("ahead", "ahead", "d"), ("of", "n", "d"),
    ("with one seed one might have reported", "one_seed", ""), ("seeds", "seeds_needed", "d")]


def table(title: str, columns: list[tuple], rows: list[dict], style: str) -> str:
    """One aligned table for a terminal ("text"), a README ("markdown") or a paper ("latex")."""
    columns = [column for column in columns if any(column[1] in row for row in rows)]
    same = [key for key in SETTING[1:] if len({row.get(key) for row in rows}) == 1]
    fixed = [f"{key} {rows[0][key]}" for key in same if rows[0].get(key) is not None]
    if fixed:
        title = f"{title} ({', '.join(fixed)})"
    columns = [column for column in columns if column[1] not in same]

    cells = [[escaped(heading, style) for heading, _, _ in columns]]
    for row in rows:
        values = [(row.get(key), form) for _, key, form in columns]
        cells.append([escaped("-" if value is None else format(value, form), style)
                      for value, form in values])
    widths = [max(map(len, column)) for column in zip(*cells)]
    right = [form != "" for _, _, form in columns]
    lines = [[text.rjust(width) if to_right else text.ljust(width)
              for text, width, to_right in zip(line, widths, right)] for line in cells]

    rule = ["-" * width for width in widths]
    if style == "text":
        return "\n".join([title, ""] + ["  ".join(line).rstrip() for line in [lines[0], rule, *lines[1:]]])
    if style == "markdown":
        rule = [dashes + (":" if to_right else "-") for dashes, to_right in zip(rule, right)]
        return "\n".join([title, ""] + [f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]]])
    heading, *body = [" & ".join(line) + r" \\" for line in lines]
    alignment = "".join("r" if to_right else "l" for to_right in right)
    return "\n".join([
        rf"\begin{{table}}\caption{{{escaped(title.split('. ', 1)[1], style)}}}",
        rf"\begin{{tabular}}{{{alignment}}}", r"\hline", heading, r"\hline", *body, r"\hline",
        r"\end{tabular}\end{table}"])


def escaped(text: str, style: str) -> str:
    if style == "markdown":
        return text.replace("|", r"\|")
    if style == "latex":
        text = re.sub(r"([&%$#_{}])", r"\\\1", text)
        return re.sub(r"(?<!\w)-(?=\d)", "$-$", text)  # a minus, not a hyphen
    return text


def report(runs: list[dict], options: argparse.Namespace) -> str:
    """All that the runs say."""
    notes = about_runs(runs)
    of_seeds = scores(runs)
    compared = comparisons(runs, options, notes)
    of_ranks = ranks(runs)
    summary = in_one_sentence(compared, options)
    if options.format == "json":
        everything = {
            "sample": runs[0]["sample"], "runs": len(runs), "options": vars(options), "scores": of_seeds,
            "comparisons": compared, "effective_rank": of_ranks, "summary": summary, "notes": notes}
        return json.dumps(everything, indent=1, allow_nan=False)

    versus = f"{options.treatment} minus baseline, by {options.compare}"
    percent = 100 * (1 - options.alpha)
    each = [row for row in compared if row["kind"] == "each"]
    luck = [LONE_RUNS] if options.compare == "masker" else []
    luck.append(f"Seeds: how many would find a difference of {options.margin:g} with 80% power.")
    parts = [  # title, columns, rows, what stands below
        (f"Table 1. Scores over the seeds, {options.epoch} epoch", SCORES, of_seeds, []),
        (f"Table 2. {versus}: mean, {percent:g}% interval, p after Holm", COMPARISONS, compared,
         summary + explained(compared, options)),
        ("Table 3. By spread: KL from uniform masking, band of the rates, agreement of seeds", MASKING,
         [row for row in of_seeds if row["kl_last"] != 0],
         ["KL in nats per token. Band: rates of the tokens at 5, 50 and 95%. Agree: rank correlation "
          "of the frequent tokens' rates between two seeds. Uniform masking (KL 0) is left out."]),
        ("Table 4. Effective rank by layer, the embeddings first", RANKS, of_ranks,
         ["Dev loss: the objective's own, at the epoch that was kept; a rank after little learning "
          "says little."]),
        (f"Table 5. The luck of one seed: {versus}", LUCK, each, luck)]
    shown = []
    if runs[0]["sample"]:
        shown.append("SAMPLE: these runs are on made-up data; they say nothing about MRPC or CoLA.")
    for title, columns, rows, below in parts:
        if rows:
            shown.append(table(title, columns, rows, options.format))
            shown += [escaped(note, options.format) for note in below]
    shown += [escaped(f"Note: {note}", options.format) for note in notes]
    return "\n\n".join(shown)


# ---- The command -------------------------------------------------------------------------------

def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"stats.py: {' '.join(message.split())}\n")
    option = parser.add_argument
    option("paths", nargs="*", default=["runs"], metavar="PATH", help="logs, folders (default: runs)")
    option("--compare", choices=list(DEFAULTS), default="masker",
           help="what pairs differ in (default: masker)")
    option("--treatment", metavar="VALUE", help="(defaults: typhoon, 1.0, mae, 80-10-10)")
    option("--baseline", nargs="+", metavar="VALUE",
           help="what it is compared with (defaults: random whole-word, 0.4, mlm, mask)")
    option("--epoch", choices=["best", "last"], default="best", help="of each stage (default: best)")
    option("--margin", type=float, default=0.01,
           help="a difference below it counts as none (default: 0.01)")
    option("--alpha", type=float, default=0.05, help="of tests and intervals (default: 0.05)")
    option("--format", choices=["text", "markdown", "latex", "json"], default="text",
           help="(default: text)")
    options = parser.parse_args(arguments)
    if not (0 < options.margin < 1 and 0.001 <= options.alpha <= 0.4):
        parser.error("--margin must lie between 0 and 1, --alpha between 0.001 and 0.4")

    treatment, baselines = DEFAULTS[options.compare]
    options.treatment = options.treatment or treatment
    options.baseline = list(dict.fromkeys(options.baseline or baselines))
    if options.compare == "spread":
        try:
            options.treatment = float(options.treatment)
            options.baseline = [float(value) for value in options.baseline]
        except ValueError as error:
            parser.error(f"spreads are numbers: {error}")
    options.baseline = [value for value in options.baseline if value != options.treatment]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    try:
        runs = read_logs(options.paths, options.epoch, options.compare)
        print(report(runs, options), flush=True)
    except KeyboardInterrupt:
        return 130
    except (UserError, UnicodeError) as error:
        print(f"stats.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # standard output takes no more: a closed pipe, a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor will it at the exit
        print(f"stats.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
