"""Is Typhoon better, and how sure can one be? The statistics over the run logs of train.py.

    python stats.py runs/

Two runs of one seed share new heads, the order of the data, dropout and more (see train.py): they
are a pair, and the mean of the paired differences has a t interval and a t test [A: the abstract's
twelve comparisons]. That five seeds find nothing says little by itself; so beside it stand [D] the
difference that these pairs would have found with 80% power, the seeds that the margin would need,
and an equivalence test (TOST, two one-sided t tests: is the true difference within the margin?).
p values, not intervals, are adjusted by Holm's method. Its family is all treatments, baselines,
tasks and backbones of one spread, objective, corruption and number of epochs; a masker that uses
no spread lends its runs to every spread that is compared.
"""
import json
import signal
import sys
from argparse import ArgumentParser, Namespace
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import combinations, product, starmap
from pathlib import Path
from textwrap import fill, shorten

import numpy as np
from scipy.special import nctdtrinc
from scipy.stats import spearmanr, ttest_1samp, wilcoxon
from scipy.stats import t as student

from glue_data import UserError

# With a seed, one run:
SETTING = ("task", "model", "objective", "masker", "spread", "corruption", "mlm_epochs")
AXES = {  # where the two of a pair differ: the values of the treatments, and of the baselines
    "masker": (["typhoon"], ["random", "whole-word"]),
    "spread": (["1.0"], ["0.4"]),
    "objective": (["mae"], ["mlm"]),
    "corruption": (["80-10-10"], ["mask"]),
    "mlm_epochs": (["3"], ["0"]),  # 0: fine-tuned without adaptation
}
STAGES = {"before": "1 before", "adapted": "2 adapted", "fine-tuned": "3 fine-tuned"}


# ---- One comparison ----------------------------------------------------------------------------

def paired_test(differences: Sequence[float], margin: float, alpha: float) -> dict:
    """The paired t test, its interval, its power, and the equivalence test.

    differences: treatment - baseline, of each pair.  margin: a true difference below it counts as
    none.  alpha: of the tests; 1 - alpha of the interval.  Without a variance there is no test.
    """
    differences = np.round(differences, 12)  # what is smaller is rounding
    row = {"n": len(differences), "mean": differences.mean()}
    row |= {"lowest": differences.min(), "highest": differences.max()}
    row["ahead"] = int((differences > 0).sum())
    if row["lowest"] == row["highest"]:
        return row | {"p": None, "finding": "no test"}

    test = ttest_1samp(differences, 0)
    interval = test.confidence_interval(1 - alpha)
    above = ttest_1samp(differences, -margin, alternative="greater")
    below = ttest_1samp(differences, margin, alternative="less")
    deviation = differences.std(ddof=1)
    return row | {
        "sd": deviation,
        "low": interval.low,
        "high": interval.high,
        "t": test.statistic,
        "p": test.pvalue,
        "tost_p": max(above.pvalue, below.pvalue),
        "wilcoxon_p": wilcoxon(differences).pvalue,  # exact up to 50 pairs; with ties, up to 13
        "detectable": deviation * detectable(len(differences), alpha),
        "seeds_needed": seeds_needed(margin / deviation, alpha),
    }


def detectable(n: int, alpha: float) -> float:
    """The true mean, in standard deviations, that n pairs find with 80% power."""
    critical = student.isf(alpha / 2, n - 1)
    return nctdtrinc(n - 1, 0.2, critical) / np.sqrt(n)  # t is above it; below -critical: never


def seeds_needed(mean: float, alpha: float) -> int:
    """The fewest pairs that find this true mean, in standard deviations, with 80% power."""
    return 2 + bisect_left(range(2, 1_000_000), -mean, key=lambda n: -detectable(n, alpha))


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
    """One run: its setting, its seed, and the figures of each stage's "best" or "last" epoch."""
    try:
        log = json.loads(path.read_text(encoding="utf-8"))
        if log["format"] != "typhoon-run-3":
            raise ValueError("format is not typhoon-run-3")
        return read_run(log, epoch) | {"path": path}
    except Exception as error:  # a file can be broken in more ways than can be listed
        reason = shorten(f"{type(error).__name__}: {error}", 150)
        raise UserError(f"{path}: is no whole run log ({reason}); "
                        "move it away, and run again what it was") from error


def read_run(log: dict, epoch: str) -> dict:
    identity = log["identity"]
    run = {"spread": None, "ranks": []}
    run |= checked(identity, str, "task", "model", "objective", "masker", "corruption")
    run |= checked(identity, int, "mlm_epochs", "seed")
    if identity["spread"] is not None:
        run |= checked(identity, float, "spread", highest=1)
    run |= checked(log, bool, "sample") | checked(log, float, "seconds", lowest=1e-6)

    classifier = of_epoch(log["classifier"], epoch)
    run |= checked(log, str, "metric") | checked(classifier, str, "predictions")
    run |= checked(classifier, float, "matthews", run["metric"], lowest=-1, highest=1)
    run["score"] = run[run["metric"]]
    if set(run["predictions"]) - {"0", "1"} or not run["predictions"]:
        raise ValueError("predictions are not 0 and 1")

    rates = log["mlm"]["frequent_rates"]
    run["rates"] = checked(rates, float, *rates, highest=1)
    if run["mlm_epochs"] > 0:
        run |= checked(of_epoch(log["mlm"], "best"), float, "dev_loss")  # of the model that is kept
        masking = of_epoch(log["mlm"], epoch)
        if masking["band"] is not None:  # the masker has a rate for each type
            run |= checked(masking, float, "kl_mean", "kl_last")
            run |= checked(masking["band"], float, "5%", "50%", "95%", highest=1)

    for record in log["effective_rank"]:
        layers = checked(record["layers"], float, *range(len(record["layers"])))
        rank = checked(record, str, "input", "tokens") | {"layers": list(layers.values())}
        run["ranks"].append(rank | {"stage": STAGES[record["stage"]]})

    depths = [len(rank["layers"]) for rank in run["ranks"]]
    added = {"sample": run["sample"], "metric": run["metric"], "layers": depths}
    run["identity"] = identity | added | {"dev_examples": len(run["predictions"])}
    return run


def of_epoch(stage: dict, which: str) -> dict:
    """The record of a stage's "best" or "last" epoch."""
    key = f"{which}_epoch"
    return stage["epochs"][checked(stage, int, key, lowest=1)[key] - 1]


def checked(record: dict, kind: type, *keys: str, lowest=0, highest=1e12) -> dict:
    """These values of a record, if each is of this kind and, as a number, in this range."""
    for key in keys:
        value = record[key]
        right = type(value) is kind or (kind is float and type(value) is int)
        if not right or (kind is not str and not lowest <= value <= highest):
            raise ValueError(f"{key} is {value!r:.40}")
    return {key: record[key] for key in keys}


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

    of = {"data": "task", "metric": "task", "dev_examples": "task", "method": "masker",
          "backbone": "model", "layers": "model", "decoder_layers": "objective"}
    options = set().union(*(run["identity"] for run in runs))
    options -= {"task", "model", "objective", "masker", "spread", "seed", axis}  # these may differ
    first = {}  # a run's name, or an option (of its task, model, ...) -> the run that had it first
    for run in runs:
        name = tuple(run[key] for key in (*SETTING, "seed"))
        other = first.setdefault(name, run)
        if other is not run:
            raise UserError(f"{other['path']} and {run['path']} are one run; keep one of them")
        for option in sorted(options):
            other = first.setdefault((option, run.get(of.get(option))), run)
            if run["identity"].get(option) != other["identity"].get(option):
                raise UserError(f"{other['path']} and {run['path']} differ in {option}, so they "
                                "are no pair; name only logs that belong together")
    return runs


# ---- The tables, each a list of rows -----------------------------------------------------------

def grouped(rows: list[dict], keys: Iterable[str]) -> list[tuple]:
    """[({key: value}, the rows that have these values)], in the order of the values."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    ordered = sorted(groups, key=str)
    return [(dict(zip(keys, values)), groups[values]) for values in ordered]


def mean(values: Iterable) -> float | None:
    """The mean of those that are there."""
    values = [value for value in values if value is not None]
    return np.mean(values) if values else None


def scores(runs: list[dict]) -> list[dict]:
    """Table 1: scores over the seeds, how far from uniform the masking was, how alike two seeds."""
    rows = []
    for setting, group in grouped(runs, SETTING):
        row = setting | {"n": len(group)}
        if len(group) > 1:
            row["sd"] = np.std([run["score"] for run in group], ddof=1)
        for key in ("score", "kl_mean", "kl_last", "5%", "50%", "95%"):
            row[key] = mean(run.get(key) for run in group)
        row["ranking"] = mean(starmap(rank_correlation, combinations(group, 2)))
        row["same"] = mean(starmap(share_of_same_predictions, combinations(group, 2)))
        rows.append(row)
    return rows


def rank_correlation(one: dict, other: dict) -> float | None:
    """Do two runs rank the tokens alike, by their rates? Spearman's; uniform rates rank nothing."""
    common = sorted(one["rates"].keys() & other["rates"].keys())
    columns = [[run["rates"][token] for token in common] for run in (one, other)]
    differ = all(len(set(column)) > 1 for column in columns)
    return spearmanr(*columns).statistic if differ else None


def share_of_same_predictions(one: dict, other: dict) -> float:
    """Of the dev examples, at the reported epochs."""
    return np.mean([a == b for a, b in zip(one["predictions"], other["predictions"])])


def comparisons(runs: list[dict], options: Namespace) -> tuple:
    """Tables 2 and 3: each treatment with each baseline, by seed; and notes on seeds left out."""
    axis = options.compare
    runs = [run for run in runs if str(run[axis]) in options.treatment + options.baseline]
    if axis == "masker":  # without a spread of its own, a run stands at every spread
        spreads = {run["spread"] for run in runs} - {None} or {None}
        runs = [run | {"spread": spread} for run, spread in product(runs, spreads)
                if run["spread"] in (None, spread)]

    keys = [key for key in SETTING if key != axis]
    rows = []
    notes = []
    for setting, group in grouped(runs, keys):
        for treatment, baseline in product(options.treatment, options.baseline):
            ones = {run["seed"]: run for run in group if str(run[axis]) == treatment}
            others = {run["seed"]: run for run in group if str(run[axis]) == baseline}
            common = sorted(ones.keys() & others.keys())
            if common and treatment != baseline:
                names = {"kind": "each", "treatment": treatment, "baseline": baseline}
                pairs = [(ones[seed], others[seed]) for seed in common]
                rows.append(setting | names | compared(pairs, options))
            if ones and others and ones.keys() != others.keys():
                notes.append(f"NOTE: {where(setting)}: {treatment} has the seeds {sorted(ones)}, "
                             f"{baseline} {sorted(others)}; only those of both are compared.")
    for _, group in grouped(rows, [*keys, "treatment"]):
        max(group, key=lambda row: row["baseline_mean"])["best"] = "*"
    return rows, notes


def compared(pairs: list[tuple], options: Namespace) -> dict:
    """What the pairs, a run of the treatment and one of the baseline each, say together."""
    differences = {one["seed"]: one["score"] - other["score"] for one, other in pairs}
    return paired_test(list(differences.values()), options.margin, options.alpha) | {
        "differences": differences,
        "baseline_mean": mean(other["score"] for _, other in pairs),
        "same": mean(starmap(share_of_same_predictions, pairs)),
        "mlm_loss": mean(one["dev_loss"] - other["dev_loss"] for one, other in pairs
                         if one["mlm_epochs"] and other["mlm_epochs"]),
        "cost": np.median([one["seconds"] / other["seconds"] for one, other in pairs]),
    }


def pooled(rows: list[dict], options: Namespace) -> list[dict]:
    """All backbones together: the difference of a seed is its mean over them."""
    keys = [key for key in SETTING if key not in ("model", options.compare)]
    pools = []
    for setting, group in grouped(rows, [*keys, "treatment", "baseline"]):
        seeds = set.intersection(*(set(row["differences"]) for row in group))
        if len(group) > 1 and seeds:
            means = [mean(row["differences"][seed] for row in group) for seed in sorted(seeds)]
            setting |= {"kind": "pooled", "model": f"{len(group)} pooled"}
            pools.append(setting | paired_test(means, options.margin, options.alpha))
    return pools


def adjust(rows: list[dict], options: Namespace) -> list[str]:
    """What each family of tests finds by Holm's method: row by row, and in a sentence."""
    alpha = options.alpha
    sentences = []
    keys = [key for key in SETTING if key not in ("task", "model", options.compare)]
    for setting, family in grouped(rows, ["kind", *keys]):
        tested = [row for row in family if row["p"] is not None]
        differ = holm([row["p"] for row in tested])
        equal = holm([row["tost_p"] for row in tested])
        for row, p, tost_p in zip(tested, differ, equal):
            row["p_holm"] = p
            row["tost_p_holm"] = tost_p
            row["finding"] = finding(row["mean"], p, tost_p, alpha)
        significant = sum(row["p"] < alpha for row in tested)
        adjusted = sum(p < alpha for p in differ)
        with_zero = sum(row["low"] <= 0 <= row["high"] for row in tested)
        equivalent = sum(p < alpha for p in equal)
        sentences.append(
            f"{where(setting)} ({setting['kind']}): {significant} of {len(tested)} comparisons "
            f"significant (after Holm: {adjusted}), {with_zero} intervals contain zero, "
            f"{equivalent} shown equivalent within {options.margin:g}.")
    return sentences


def ranks(runs: list[dict]) -> list[dict]:
    """Table 4: effective ranks, mean over the seeds; the objectives of one stage stand together."""
    records = [run | rank for run in runs for rank in run["ranks"]]
    keys = [key for key in SETTING if key != "objective"]
    rows = []
    for setting, group in grouped(records, [*keys, "input", "tokens", "stage", "objective"]):
        layers = np.mean([record["layers"] for record in group], axis=0).tolist()
        row = setting | {"n": len(group), "layers": layers}
        row["rank_of_each_layer"] = " ".join(f"{rank:.0f}" for rank in layers)
        if row["stage"] == STAGES["adapted"]:
            row["dev_loss"] = mean(record.get("dev_loss") for record in group)
        rows.append(row)
    return rows


# ---- How they are shown ------------------------------------------------------------------------

FORMATS = {  # of columns with numbers; the others are text, to the left
    "n ahead seeds_needed": "d",
    "score sd detectable": ".4f",
    "5% 50% 95% same": ".3f",
    "ranking cost dev_loss": ".2f",
    "mean low high lowest highest mlm_loss": "+.4f",
    "kl_mean kl_last": ".1e",
    "p_holm": ".2g",
}
TABLES = (  # title, which rows, their columns, how to read them
    ("Table 1. Scores and masking over the seeds", "scores",
     "n score sd kl_mean kl_last 5% 50% 95% ranking same",
     "score: F1 (MRPC) or Matthews (CoLA), {epoch} epoch. KL from uniform masking in nats per "
     "token, over the epoch and at its end; 5, 50, 95% of the tokens have no higher rate. Mean "
     "over all pairs of seeds: ranking, do the last rates rank the frequent tokens alike (1) or at "
     "random (0)? and same, the share of dev examples that both predict alike."),
    ("Table 2. {treatments} minus baseline, paired by seed", "comparisons",
     "baseline best n mean low high p_holm same finding",
     "best *: the baseline of the highest mean score. low, high: the interval, unadjusted. p_holm "
     "and finding by Holm's method over all comparisons of one spread, pooled ones apart. better, "
     "worse: p_holm below {alpha:g}; equivalent: shown to lie within {margin:g}; small gain, small "
     "loss: both; undecided: neither. same: the share of dev examples that both predict alike."),
    ("The intervals of Table 2, from -{reach:.4f} to {reach:.4f}", "intervals",
     "baseline interval", "-: the interval; *: the mean; |: zero; colons: the margins."),
    ("Table 3. The luck of one seed, and the cost", "comparisons",
     "baseline ahead lowest highest detectable seeds_needed mlm_loss cost",
     "With one seed one might have reported anything from lowest to highest; ahead: in so many "
     "seeds. detectable: the true difference that so many pairs find with 80% power; seeds_needed: "
     "to find one of {margin:g}. mlm_loss: mean difference of the dev MLM loss; cost: median ratio "
     "of the seconds."),
    ("Table 4. Effective rank", "effective_rank", "input tokens stage dev_loss rank_of_each_layer",
     "dev_loss: the objective's own, of the adapted model. A rank after little learning says "
     "little."),
)


def table(columns: Iterable[str], rows: list[dict], style: str) -> str:
    """The rows, aligned for a terminal ("text") or a README ("markdown")."""
    forms = {name: form for names, form in FORMATS.items() for name in names.split()}
    aligned = []
    for column in columns:
        form = forms.get(column, "")
        values = [row.get(column) for row in rows]
        cells = ["-" if value is None else format(value, form) for value in values]
        width = max(map(len, [column, *cells]))
        cells = [column, "-" * width, *cells]
        aligned.append([cell.rjust(width) if form else cell.ljust(width) for cell in cells])
    if style == "markdown":
        return "\n".join(f"| {' | '.join(cells)} |" for cells in zip(*aligned))
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*aligned))


def drawn(rows: list[dict], margin: float) -> tuple:
    """A forest plot: the rows with their intervals in characters, from -reach to +reach; reach."""
    rows = [row for row in rows if "low" in row]
    reach = max([margin] + [max(-row["low"], row["high"]) for row in rows])

    def place(value):
        return round(25 + 25 * value / reach)

    plots = []
    for row in rows:
        marks = dict.fromkeys(range(place(row["low"]), place(row["high"]) + 1), "-")
        marks |= {place(-margin): ":", place(margin): ":", 25: "|"}
        marks[place(row["mean"])] = "*"
        plots.append("".join(marks.get(column, " ") for column in range(51)))
    return [row | {"interval": plot} for row, plot in zip(rows, plots)], reach


def where(setting: dict, keys=SETTING) -> str:
    return ", ".join(f"{key} {setting[key]}" for key in keys if setting.get(key) is not None)


def report(runs: list[dict], options: Namespace) -> str:
    """All that the runs say."""
    rows, of_seeds = comparisons(runs, options)
    rows += pooled(rows, options)
    of_tests = adjust(rows, options)
    rows_of = {"scores": scores(runs), "comparisons": rows, "effective_rank": ranks(runs)}

    first = runs[0]
    shared = [key for key in SETTING if all(run[key] == first[key] for run in runs)]
    notes = ["SAMPLE: made-up data; these runs say nothing about MRPC or CoLA."] * first["sample"]
    notes += [f"{len(runs)} runs, all: {where(first, shared)}.", *of_seeds]
    notes += of_tests or [f"There is no pair of {options.compare} {' or '.join(options.treatment)} "
                          f"and {' or '.join(options.baseline)}."]
    if collapsed := [run["path"].name for run in runs if run["matthews"] == 0]:
        notes.append("Collapsed into one class (Matthews exactly 0 at the reported epoch), but "
                     f"counted: {', '.join(collapsed)}")
    if options.format == "json":
        everything = {"notes": notes, "options": vars(options), **rows_of}
        return json.dumps(everything, indent=1, allow_nan=False)

    words = vars(options) | {"treatments": " or ".join(options.treatment)}
    if options.format == "text":
        rows_of["intervals"], words["reach"] = drawn(rows, options.margin)
    parts = [fill(note, 98) for note in notes]
    for title, name, columns, how_to_read in TABLES:
        if rows := rows_of.get(name):
            varied = [key for key in (*SETTING, "treatment")
                      if len({row.get(key) for row in rows} - {None}) > 1]
            parts.append(title.format(**words))
            parts.append(table(varied + columns.split(), rows, options.format))
            parts.append(fill(how_to_read.format(**words), 98))
    return "\n\n".join(parts)


# ---- The command -------------------------------------------------------------------------------

def read_options(arguments) -> Namespace:
    parser = ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"stats.py: {' '.join(message.split())}\n")
    add = parser.add_argument
    add("paths", nargs="*", default=["runs"], help="run logs, or folders of them (runs)")
    add("--compare", choices=list(AXES), default="masker", help="where a pair differs (masker)")
    add("--treatment", nargs="+", help="its values in one run: typhoon, or 1.0, mae, 80-10-10")
    add("--baseline", nargs="+", help="and in the other: random whole-word, or 0.4, mlm, mask")
    add("--epoch", choices=["best", "last"], default="best",
        help="the one to report, of each stage; fine-tuning starts from the best one (best)")
    add("--margin", type=float, default=0.01, help="a smaller difference is none (0.01)")
    add("--alpha", type=float, default=0.05, help="of tests and intervals (0.05)")
    add("--format", choices=["text", "markdown", "json"], default="text", help="(text)")
    options = parser.parse_args(arguments)
    if not (0 < options.margin < 1 and 0.001 <= options.alpha <= 0.4):
        parser.error("--margin must lie between 0 and 1, --alpha between 0.001 and 0.4")
    return options


def choose_sides(options: Namespace, runs: list[dict]) -> None:
    """The treatments and baselines: what is named must be there, the defaults need not."""
    there = {str(run[options.compare]) for run in runs} - {"None"}
    if missing := {*(options.treatment or []), *(options.baseline or [])} - there:
        raise UserError(f"no run has {options.compare} {' or '.join(sorted(missing))}; "
                        f"there are: {', '.join(sorted(there))}")
    treatments, baselines = AXES[options.compare]
    options.treatment = list(dict.fromkeys(options.treatment or treatments))  # each once
    options.baseline = list(dict.fromkeys(options.baseline or baselines))


def end_quietly_with_the_pipe() -> None:
    """Where nobody reads on (`| head`), end without a word, as other programs do."""
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def main(arguments=None) -> int:
    options = read_options(arguments)
    try:
        runs = read_logs(options.paths, options.epoch, options.compare)
        choose_sides(options, runs)
    except UserError as error:
        print(f"stats.py: {error}", file=sys.stderr)
        return 2
    print(report(runs, options))
    return 0


if __name__ == "__main__":
    end_quietly_with_the_pipe()
    sys.exit(main())
