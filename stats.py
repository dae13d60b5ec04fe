"""Is Typhoon better, and how sure can one be? The statistics over the run logs of train.py.

    python stats.py runs/

Two runs of one seed share the classifier's first weights, the order of the data and dropout: they
are a pair, and the mean of the paired differences has a t interval and a t test [A: the abstract's
twelve comparisons]. That five seeds find nothing says little by itself. So beside it stand [D: our
decisions] the difference that these pairs would have found with 80% power, the seeds that the
margin would need, and an equivalence test (two one-sided t tests: is the true difference within
the margin?). p values are adjusted by Holm's method, intervals are not. Rows pooled over the
backbones let each have its own mean difference and share one variance. Collapsed runs are named,
and count like the others.

Top to bottom: one comparison; the logs; which runs are pairs; the tables; how they are shown.
"""
import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from textwrap import fill

import numpy as np
from scipy.optimize import brentq
from scipy.stats import ncf, rankdata, spearmanr
from scipy.stats import t as student

from glue_data import UserError

SETTING = ("task", "model", "objective", "masker", "spread", "corruption")  # with a seed: one run
DEFAULTS = {  # --compare: (--treatment, --baseline)
    "masker": ("typhoon", ["random", "whole-word"]),
    "spread": ("1.0", ["0.4"]),
    "objective": ("mae", ["mlm"]),
    "corruption": ("80-10-10", ["mask"]),
}


# ---- One comparison ----------------------------------------------------------------------------

def compare(strata: Sequence[Sequence[float]], margin: float, alpha: float) -> dict:
    """Is the mean of paired differences zero, and how far from zero could it be?

    strata: the differences treatment - baseline, one list for each backbone that is pooled. With
    one list this is the paired t test, scipy.stats.ttest_rel. With several, the estimate is the
    mean of their means and the variance is that within the lists, with sum(n) - len(strata) degrees
    of freedom.  margin: a true difference below it counts as none.  alpha: of the tests; 1 - alpha
    of the interval.  Without a variance (one pair, or all differences equal) there is no test.
    """
    strata = [np.asarray(stratum, float) for stratum in strata]
    every = np.concatenate(strata)  # (n,)
    mean = float(np.mean([stratum.mean() for stratum in strata]))
    ahead = int((every > 0).sum())
    row = {"n": len(every), "ahead": ahead, "mean": mean, "p": None}
    freedom = len(every) - len(strata)
    if freedom == 0:
        return row | {"finding": "one pair"}
    if all(np.ptp(stratum) == 0 for stratum in strata):
        return row | {"finding": "all equal"}

    squares = sum(((stratum - stratum.mean()) ** 2).sum() for stratum in strata)
    deviation = float(np.sqrt(squares / freedom))
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
    """How many standard errors from zero is a true mean that is found with this power?"""
    critical = student.isf(alpha / 2, freedom)

    def lacking(shift):  # the square of t is F with 1 degree of freedom: both tails in one
        return ncf.sf(critical ** 2, 1, freedom, shift ** 2) - power

    with np.errstate(divide="ignore"):  # scipy 1.11 warns where the result is right
        return brentq(lacking, 0, 2 * critical + 5)


def seeds_needed(deviation: float, strata: int, margin: float, alpha: float) -> int:
    """The fewest seeds with which a true difference of `margin` is found with 80% power."""
    with_many = noncentrality(100_000, alpha) * deviation / margin  # few seeds take only more
    seeds = max(2, int(with_many ** 2 / strata))
    while noncentrality(strata * (seeds - 1), alpha) * deviation > margin * np.sqrt(strata * seeds):
        seeds += 1
    return seeds


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
    return {"wilcoxon": float(smaller / 2), "wilcoxon_p": float(p)}


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

NULL, TEXT, WHOLE, NUMBER = type(None), (str,), (int,), (int, float)


def take(path: Path, log, types: tuple[type, ...], *keys):
    """The value of a log under these keys, one inside the other.

    UserError: there is none, or it is of another type, or NaN or infinite.
    """
    value = log
    try:
        for key in keys:
            value = value[key]
        found = repr(value)[:40]
        if type(value) in types and (type(value) not in NUMBER or abs(value) < 1e9):
            return value
    except (LookupError, TypeError):
        found = "missing"
    name = ".".join(str(key) for key in keys)
    raise UserError(f"{path}: {name} is {found}; move the log away and run again")


def read_log(path: Path, epoch: str) -> dict:
    """What the tables need of one log, with each stage's figures at its "best" or "last" epoch."""
    try:
        log = json.loads(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise UserError(f"{path} cannot be read ({error}); give run logs or their folder") from None
    get = partial(take, path, log)
    if get(TEXT, "format") != "typhoon-run-2":
        raise UserError(f"{path}: format is not typhoon-run-2; move the log away and run again")

    here = ("classifier", "epochs", get(WHOLE, "classifier", f"{epoch}_epoch") - 1)
    run = {key: get(TEXT, "identity", key) for key in SETTING if key != "spread"} | {
        "spread": get((*NUMBER, NULL), "identity", "spread"),
        "seed": get(WHOLE, "identity", "seed"),
        "path": path,
        "sample": get((bool,), "sample"),
        "identity": get((dict,), "identity"),
        "environment": get((dict,), "environment"),
        "metric": get(TEXT, "metric"),
        "score": get(NUMBER, *here, get(TEXT, "metric")),
        "collapsed": get(NUMBER, *here, "matthews") == 0,  # one class was predicted for all
        "rates": {token: get(NUMBER, "mlm", "frequent_rates", token)
                  for token in get((dict,), "mlm", "frequent_rates")},
    }
    if number := get(WHOLE, "mlm", f"{epoch}_epoch"):  # 0: there was no adaptation
        here = ("mlm", "epochs", number - 1)
        run |= {key: get((*NUMBER, NULL), *here, key) for key in ("kl_mean", "kl_last")}
        if get((dict, NULL), *here, "band") is not None:
            run |= {key: get(NUMBER, *here, "band", key) for key in ("5%", "50%", "95%")}
    if number := get(WHOLE, "mlm", "best_epoch"):  # whose model is kept, and has the ranks
        run["dev_loss"] = get(NUMBER, "mlm", "epochs", number - 1, "dev_loss")
    run["ranks"] = []
    for i in range(len(get((list,), "effective_rank"))):
        here = ("effective_rank", i)
        record = {key: get(TEXT, *here, key) for key in ("input", "tokens", "stage")}
        layers = range(len(get((list,), *here, "layers")))
        record["layers"] = [get(NUMBER, *here, "layers", layer) for layer in layers]
        run["ranks"].append(record)
    return run


def read_logs(paths: Iterable[str | Path], epoch="best", compared="masker") -> list[dict]:
    """The runs of these files, and of these folders (their own *.json), that belong together.

    UserError: no log, one run twice, or runs that differ in more than their setting and seed.
    """
    runs = []
    for path in map(Path, paths):
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.glob("*.json") if file.name[0] != ".")
        if not files:
            raise UserError(f"{path} holds no run log (*.json); train.py writes them to its --out")
        runs += [read_log(file, epoch) for file in files]

    first = {}  # what must agree, or be there once -> its value, and the log that had it first
    for run in runs:
        one_run = tuple(run[key] for key in (*SETTING, "seed"))
        if one_run in first:
            raise UserError(f"{first[one_run][1]} and {run['path']} are one run; keep one of them")
        for fact, value in (facts(run, compared) | {one_run: None}).items():
            other, path = first.setdefault(fact, (value, run["path"]))
            if value != other:
                raise UserError(f"{path} and {run['path']} differ in {fact}, so they are no pair; "
                                "name the logs that belong together, or move one away")
    return runs


def facts(run: dict, compared: str) -> dict:
    """By name, what must be the same in all runs that are read together."""
    free = {"task", "model", "objective", "masker", "spread", "seed", compared}
    of = {"data": "task", "backbone": "model", "method": "masker", "decoder_layers": "objective"}
    agreed = {"sample": run["sample"], "their options": sorted(run["identity"])}
    for option, value in run["identity"].items():
        if option in of:
            agreed[f"{option} of {run[of[option]]}"] = value
        elif option not in free:
            agreed[option] = value
    return agreed


# ---- Which runs are pairs ----------------------------------------------------------------------

def grouped(rows: Iterable[dict], keys: Iterable[str]) -> list[tuple[dict, list]]:
    """[({key: value}, the rows that have these values)], in the order of the values; null first."""
    def values(row):
        return [(row[key] is not None, row[key]) for key in keys]

    groups = {}
    for row in sorted(rows, key=values):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [(dict(zip(keys, group)), members) for group, members in groups.items()]


def lend(runs: list[dict], keys: list[str]) -> list[dict]:
    """A run that does not use the spread (null) stands at every spread that others like it have."""
    lent = []
    for _, group in grouped(runs, [key for key in keys if key != "spread"]):
        spreads = {run["spread"] for run in group if run["spread"] is not None}
        for run in group:
            if run["spread"] is None and spreads:
                lent += [run | {"spread": spread} for spread in spreads]
            else:
                lent.append(run)
    return lent


def pairs(runs: list[dict], options: argparse.Namespace, notes: list[str]) -> list[tuple]:
    """[(setting, baseline, {seed: (run of the treatment, run of the baseline)})]

    The two differ in their value on the compared axis and in nothing else. What has no partner is
    noted.
    """
    axis, treatment, baselines = options.compare, options.treatment, options.baseline
    found = []
    keys = [key for key in SETTING if key != axis]
    chosen = [run for run in runs if run[axis] in (treatment, *baselines)]
    for setting, group in grouped(lend(chosen, keys), keys):
        treated = {run["seed"]: run for run in group if run[axis] == treatment}
        for baseline in baselines:
            others = {run["seed"]: run for run in group if run[axis] == baseline}
            both = sorted(treated.keys() & others.keys())
            for value, seeds in ((baseline, treated), (treatment, others)):
                if alone := seeds.keys() - both:
                    notes.append(f"{where(setting)}: no {value} run for seed {listed(alone)}.")
            if both:
                paired = {seed: (treated[seed], others[seed]) for seed in both}
                found.append((setting, baseline, paired))
    if not found:
        notes.append(f"Nothing to compare: no pair of {axis} {treatment} and a baseline.")
    return found


def where(setting: dict) -> str:
    shown = [key for key in SETTING[:-1] if setting.get(key) is not None]
    return ", ".join(f"{key} {setting[key]}" for key in shown)


def listed(seeds: Iterable[int]) -> str:
    return ", ".join(str(seed) for seed in sorted(seeds))


# ---- The tables, each a list of rows -----------------------------------------------------------

def scores(runs: list[dict]) -> list[dict]:
    """Tables 1 and 3: the scores over the seeds, and how far from uniform the masking was."""
    rows = []
    for setting, group in grouped(runs, SETTING):
        values = [run["score"] for run in group]
        row = setting | {"metric": group[0]["metric"], "n": len(group)}
        row["scores"] = {run["seed"]: run["score"] for run in group}
        row["mean"] = float(np.mean(values))
        row["sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
        for key in ("kl_mean", "kl_last", "5%", "50%", "95%"):
            row[key] = mean_of(group, key)
        row["agreement"] = agreement([run["rates"] for run in group])
        if collapsed := sum(run["collapsed"] for run in group):
            row["collapsed"] = collapsed
        rows.append(row)
    return rows


def mean_of(runs: list[dict], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return float(np.mean(values)) if values else None


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
    """Tables 2 and 5: each comparison; the one with the best baseline again; pooled backbones."""
    test = partial(compare, margin=options.margin, alpha=options.alpha)
    each = []
    for setting, baseline, paired in pairs(runs, options, notes):
        # Scores come of a thousand predictions or so: a difference of 1e-12 is rounding.
        differences = {seed: round(treated["score"] - other["score"], 12)
                       for seed, (treated, other) in paired.items()}
        values = list(differences.values())
        row = {"kind": "each", **setting, "baseline": baseline, "differences": differences}
        row |= test([values]) | exact_wilcoxon(values) | {"one_seed": one_seed(differences)}
        row["baseline_mean"] = mean_of([other for _, other in paired.values()], "score")
        each.append(row)

        collapsed = [seed for seed, both in paired.items() if any(run["collapsed"] for run in both)]
        rest = [differences[seed] for seed in differences if seed not in collapsed]
        if collapsed and rest:
            row["without_collapsed"] = test([rest])
            notes.append(f"{where(setting)}, {options.treatment} - {baseline}: {interval(row)}; "
                         f"without seed {listed(collapsed)}: {interval(row['without_collapsed'])}.")

    keys = [key for key in SETTING if key != options.compare]
    best = with_best_baseline(each, keys)
    pooled = over_backbones(each, [key for key in keys if key != "model"], test)
    family = [key for key in keys if key not in ("task", "model")]  # its tests differ in these
    for rows in (each, pooled):
        for setting, members in grouped(rows, family):
            adjust(members, where(setting), options.alpha)
    return each + best + pooled


def with_best_baseline(each: list[dict], keys: list[str]) -> list[dict]:
    """Of each setting with several baselines, the row of the one with the highest mean score."""
    rows = []
    for _, group in grouped(each, keys):
        if len(group) > 1:
            best = max(group, key=lambda row: row["baseline_mean"])
            rows.append(best | {"kind": "best", "finding": "vs best"})
    return rows


def over_backbones(each: list[dict], keys: list[str], test: Callable) -> list[dict]:
    """The rows that differ in the model only, as one comparison stratified by model."""
    rows = []
    for setting, group in grouped(each, [*keys, "baseline"]):
        if len(group) > 1:
            row = setting | {"kind": "pooled", "model": f"{len(group)} pooled"}
            rows.append(row | test([list(row["differences"].values()) for row in group]))
    return rows


def adjust(rows: list[dict], family: str, alpha: float) -> None:
    """Holm's method over the tests of one family, for difference and for equivalence apart."""
    rows = [row for row in rows if row["p"] is not None]
    differ = holm([row["p"] for row in rows])
    equal = holm([row["tost_p"] for row in rows])
    for row, p, tost_p in zip(rows, differ, equal):
        row |= {"family": family, "p_holm": p, "tost_p_holm": tost_p}
        row["finding"] = finding(row["mean"], p, tost_p, alpha)


def in_one_sentence(rows: list[dict], margin: float, alpha: float) -> list[str]:
    """What the comparisons say together: a sentence for each family of them."""
    sentences = []
    tested = [row for row in rows if row["kind"] == "each" and row["p"] is not None]
    for family, group in grouped(tested, ["family"]):
        significant = sum(row["p"] < alpha for row in group)
        adjusted = sum(row["p_holm"] < alpha for row in group)
        with_zero = sum(row["low"] <= 0 <= row["high"] for row in group)
        equivalent = sum(row["tost_p_holm"] < alpha for row in group)
        sentences.append(
            f"{family['family']}: {significant} of {len(group)} comparisons significant "
            f"(after Holm: {adjusted}), {with_zero} intervals contain zero, "
            f"{equivalent} shown equivalent within {margin:g}.")
    return sentences


def interval(row: dict) -> str:
    if row["p"] is None:
        return f"{row['mean']:+.4f} ({row['finding']})"
    return f"{row['mean']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"


def one_seed(differences: dict[int, float]) -> str:
    low = min(differences, key=differences.get)
    high = max(differences, key=differences.get)
    return (f"anything from {differences[low]:+.4f} (seed {low}) "
            f"to {differences[high]:+.4f} (seed {high})")


def ranks(runs: list[dict]) -> list[dict]:
    """Table 4: effective ranks, mean over the seeds; the objectives of one stage stand together."""
    rows = []
    keys = ("task", "model", "masker", "spread", "corruption", "input", "tokens")
    order = {"before": 0, "adapted": 1, "fine-tuned": 2}
    records = [run | record | {"order": order.get(record["stage"])}
               for run in runs for record in run["ranks"]]
    for setting, group in grouped(records, (*keys, "order", "stage", "objective")):
        layers = np.mean([run["layers"] for run in group], axis=0).tolist()
        row = setting | {"n": len(group), "layers": layers, "dev_loss": None}
        row["by_layer"] = " ".join(f"{rank:.0f}" for rank in layers)
        if setting["stage"] == "adapted":
            row["dev_loss"] = mean_of(group, "dev_loss")
        rows.append(row)
    return rows


def about_runs(runs: list[dict]) -> list[str]:
    """Collapsed runs, and environments that differ."""
    notes = [f"{run['path'].name} collapsed into one class (Matthews exactly 0 at the reported "
             "epoch); it counts in every result." for run in runs if run["collapsed"]]
    for key in sorted({key for run in runs for key in run["environment"]}):
        values = Counter(str(run["environment"].get(key)) for run in runs)
        if len(values) > 1:
            split = ", ".join(f"{value} in {number}" for value, number in values.items())
            notes.append(f"Runs differ in {key}: {split}.")
    return notes


# ---- How they are shown ------------------------------------------------------------------------

# A column: (heading, key of the row, format); without a format it is text, aligned to the left.
SETTINGS = [(key, key, "") for key in SETTING]
SCORES = SETTINGS + [
    ("metric", "metric", ""), ("n", "n", "d"), ("mean", "mean", ".4f"),
    ("sd", "sd", ".4f"), ("collapsed", "collapsed", "d")]
COMPARISONS = SETTINGS + [
    ("baseline", "baseline", ""), ("mean", "mean", "+.4f"), ("low", "low", "+.4f"),
    ("high", "high", "+.4f"), ("p", "p_holm", ".2g"), ("detectable", "detectable", ".4f"),
    ("ahead", "ahead", "d"), ("of", "n", "d"), ("finding", "finding", "")]
MASKING = SETTINGS + [
    ("mean KL", "kl_mean", ".1e"), ("last KL", "kl_last", ".1e"), ("5%", "5%", ".3f"),
    ("50%", "50%", ".3f"), ("95%", "95%", ".3f"), ("agree", "agreement", ".2f"),
    ("n", "n", "d"), ("score", "mean", ".4f"), ("sd", "sd", ".4f")]
RANKS = [column for column in SETTINGS if column[1] != "objective"] + [
    ("input", "input", ""), ("tokens", "tokens", ""), ("stage", "stage", ""),
    ("objective", "objective", ""), ("dev loss", "dev_loss", ".2f"), ("by layer", "by_layer", "")]
LUCK = SETTINGS + [
    ("baseline", "baseline", ""), ("ahead", "ahead", "d"), ("of", "n", "d"),
    ("with one seed one might have reported", "one_seed", ""), ("seeds", "seeds_needed", "d")]

HOW_TO_READ_2 = """\
Low and high: the {percent:g}% interval, unadjusted. p and findings are adjusted (Holm, over the \
comparisons that differ in task, model and baseline only; pooled rows among themselves). \
Detectable: the true difference that so many pairs find with 80% power. Findings: better or worse, \
p below {alpha:g}; equivalent, shown to be within {margin:g}; small gain or loss, both; undecided, \
neither. vs best: the comparison with the baseline of the higher mean score, repeated; chosen by \
its result, it is not tested again."""
HOW_TO_READ_3 = """\
KL in nats per token. 5, 50, 95%: rates of the tokens. Agree: correlation of two seeds' rankings \
of the frequent tokens. Uniform masking (KL 0) is left out."""
HOW_TO_READ_4 = """\
Dev loss: the objective's own, of the adapted model. A rank after little learning says little."""
HOW_TO_READ_5 = """\
Seeds: how many find a true difference of {margin:g} with 80% power. For comparison, the authors' \
2023 code came with single runs (random / whole-word / Typhoon): MRPC F1 .777 / .825 / .850, \
CoLA Matthews .150 / .202 / .160."""


def table(title: str, columns: list[tuple], rows: list[dict], style: str) -> str:
    """One aligned table for a terminal ("text"), a README ("markdown") or a paper ("latex").

    A setting that is one in all rows goes into the title; a column that no row has is left out.
    """
    values = {key: {row.get(key) for row in rows} for key in SETTING}
    same = [key for key in SETTING if len(values[key]) == 1 and key != "task"]
    if fixed := where({key: rows[0].get(key) for key in same}):
        title += f" ({fixed})"
    columns = [column for column in columns if column[1] not in same]
    columns = [column for column in columns if any(column[1] in row for row in rows)]

    cells = [[heading for heading, _, _ in columns]]
    for row in rows:
        cells.append(["-" if row.get(key) is None else format(row[key], form)
                      for _, key, form in columns])
    cells = [[escaped(text, style) for text in line] for line in cells]
    widths = [max(2, *map(len, column)) for column in zip(*cells)]
    aligned = [">" if form else "<" for _, _, form in columns]
    heading, *body = [[f"{text:{side}{width}}" for text, side, width in zip(line, aligned, widths)]
                      for line in cells]
    rule = ["-" * width for width in widths]

    if style == "text":
        lines = ["  ".join(line).rstrip() for line in (heading, rule, *body)]
        return "\n".join([title, "", *lines])
    if style == "markdown":
        colons = [":" if side == ">" else "-" for side in aligned]
        rule = [dashes[1:] + colon for dashes, colon in zip(rule, colons)]
        lines = ["| " + " | ".join(line) + " |" for line in (heading, rule, *body)]
        return "\n".join([title, "", *lines])
    sides = "".join("r" if side == ">" else "l" for side in aligned)
    heading, *body = [" & ".join(line) + r" \\" for line in (heading, *body)]
    return "\n".join([
        rf"\begin{{table}}\caption{{{escaped(title.split('. ', 1)[1], style)}}}",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\hline", heading, r"\hline", *body, r"\hline",
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
    of_settings = scores(runs)
    compared = comparisons(runs, options, notes)
    of_layers = ranks(runs)
    summary = in_one_sentence(compared, options.margin, options.alpha)
    if options.format == "json":
        return json.dumps({
            "sample": runs[0]["sample"], "runs": len(runs), "options": vars(options),
            "scores": of_settings, "comparisons": compared, "effective_rank": of_layers,
            "summary": summary, "notes": notes}, indent=1, allow_nan=False)

    figures = {"percent": 100 * (1 - options.alpha), **vars(options)}
    difference = f"{options.treatment} minus baseline"
    not_uniform = [row for row in of_settings if row["kl_last"] != 0]
    each = [row for row in compared if row["kind"] == "each"]
    tables = [
        (f"Table 1. Scores over the seeds, {options.epoch} epoch", SCORES, of_settings, []),
        (f"Table 2. {difference}, paired by seed", COMPARISONS, compared,
         [*summary, HOW_TO_READ_2.format(**figures)]),
        ("Table 3. Masking by spread", MASKING, not_uniform, [HOW_TO_READ_3]),
        ("Table 4. Effective rank by layer", RANKS, of_layers, [HOW_TO_READ_4]),
        (f"Table 5. The luck of one seed: {difference}", LUCK, each,
         [HOW_TO_READ_5.format(**figures)])]
    shown = []
    if runs[0]["sample"]:
        shown.append("SAMPLE: these runs are on made-up data; they say nothing about MRPC or CoLA.")
    for title, columns, rows, below in tables:
        if rows:
            shown.append(table(title, columns, rows, options.format))
            shown += [paragraph(text, options.format) for text in below]
    shown += [paragraph(f"Note: {note}", options.format) for note in notes]
    return "\n\n".join(shown)


def paragraph(text: str, style: str) -> str:
    return fill(text, 98) if style == "text" else escaped(text, style)


# ---- The command -------------------------------------------------------------------------------

def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"stats.py: {' '.join(message.split())}\n")
    add = parser.add_argument
    add("paths", nargs="*", default=["runs"], metavar="PATH",
        help="logs or folders (default: runs)")
    add("--compare", choices=list(DEFAULTS), default="masker",
        help="what the two of a pair differ in (default: masker)")
    add("--treatment", metavar="VALUE", help="(defaults: typhoon, 1.0, mae, 80-10-10)")
    add("--baseline", nargs="+", metavar="VALUE",
        help="what it is compared with (defaults: random whole-word, 0.4, mlm, mask)")
    add("--epoch", choices=["best", "last"], default="best", help="of each stage (default: best)")
    add("--margin", type=float, default=0.01, help="less is no difference (default: 0.01)")
    add("--alpha", type=float, default=0.05, help="of tests and intervals (default: 0.05)")
    add("--format", choices=["text", "markdown", "latex", "json"], default="text",
        help="(default: text)")
    options = parser.parse_args(arguments)
    if not (0 < options.margin < 1 and 0.001 <= options.alpha <= 0.4):
        parser.error("--margin must lie between 0 and 1, --alpha between 0.001 and 0.4")

    treatment, baselines = DEFAULTS[options.compare]
    options.treatment = options.treatment or treatment
    options.baseline = options.baseline or baselines
    if options.compare == "spread":
        try:
            options.treatment = float(options.treatment)
            options.baseline = [float(spread) for spread in options.baseline]
        except ValueError as error:
            parser.error(f"spreads are numbers: {error}")
    options.baseline = [value for value in dict.fromkeys(options.baseline)
                        if value != options.treatment]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    try:
        runs = read_logs(options.paths, options.epoch, options.compare)
        print(report(runs, options), flush=True)
        return 0
    except KeyboardInterrupt:
        return 130
    except (UserError, OSError, UnicodeError) as error:  # the latter two: of standard output
        print(f"stats.py: {error}", file=sys.stderr)
        if isinstance(error, OSError):
            sys.stdout = None  # it takes no more, nor will it at the exit
        return 2


if __name__ == "__main__":
    sys.exit(main())
