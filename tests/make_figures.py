"""Draws tests/study/forest.svg and tests/study/band.svg from the logs beside them. Run by hand,
with matplotlib, which the project itself does not need:

    python tests/make_figures.py

Each figure keeps the fingerprint of the logs that it shows; tests/test_study.py fails when they are
others by now.
"""
import hashlib
import sys
from argparse import Namespace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUDY = ROOT / "tests" / "study"
sys.path.insert(0, str(ROOT))
import stats  # noqa: E402

MARGIN = 0.01
GREY, BLUE, ORANGE = "#808080", "#3d85c6", "#d07a1f"  # on white and on black
FOREST = (  # what is compared: folders, the axis, its treatment and its baseline
    ("", "masker", "typhoon", "random"),
    ("", "masker", "whole-word", "random"),
    ("", "masker", "frequent-only", "random"),
    ("", "masker", "rare-only", "random"),
    ("", "masker", "random-redrawn", "random"),
    ("first", "masker", "typhoon", "random"),
    ("first", "masker", "whole-word", "random"),
    ("first unadapted", "mlm_epochs", "3", "0"),
)


def folders(part: str) -> list[Path]:
    """"": our second study with its controls; "first": the first one, and parts of it."""
    if not part:
        return [path for path in (STUDY, STUDY / "controls") if list(path.glob("*.json"))]
    first, *rest = part.split()
    return [STUDY / first, *(STUDY / first / each for each in rest)]


def logs() -> list[Path]:
    """Every log that a figure shows."""
    parts = {folder for part, *_ in FOREST for folder in folders(part)}
    return sorted(path for folder in parts for path in folder.glob("*.json"))


def fingerprint() -> str:
    digest = hashlib.sha256()
    for path in logs():
        digest.update(f"{path.relative_to(STUDY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def compared(part: str, axis: str, treatment: str, baseline: str) -> list[dict]:
    """Rows of stats.py: one for each task, and spread, of which there are such pairs."""
    options = Namespace(compare=axis, treatment=[treatment], baseline=[baseline], margin=MARGIN,
                        alpha=0.05)
    rows, _ = stats.comparisons(stats.read_logs(folders(part), "best", axis), options)
    if axis != "masker":  # of random masking alone
        rows = [row for row in rows if row["masker"] == "random"]
    elif treatment != "typhoon":  # without a spread of its own: one row a task
        rows = list({row["task"]: row for row in rows}.values())
    return rows


def name(row: dict, part: str) -> str:
    """A line's name in the figure."""
    treatment, baseline = row["treatment"], row["baseline"]
    if baseline == "0":
        treatment, baseline = "random", "no adaptation"
    if treatment == "typhoon" and row["spread"] != 0.4:
        treatment += f", spread {row['spread']:g}"
    study = "1st study" if part else "2nd study"
    return f"{treatment} - {baseline}\n{study}, n = {row['n']}"


def forest(plt) -> None:
    lines = [(name(row, part), row) for part, *sides in FOREST for row in compared(part, *sides)]
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.4), sharex=True, layout="constrained")
    for axis, task, title in zip(axes, ("mrpc", "cola"), ("MRPC, F1", "CoLA, Matthews")):
        rows = [(label, row) for label, row in lines if row["task"] == task]
        axis.axvspan(-MARGIN, MARGIN, color=GREY, alpha=0.15)
        axis.axvline(0, color=GREY, linewidth=0.8)
        for place, (label, row) in enumerate(reversed(rows)):
            known = "low" in row
            colour = ORANGE if known and not row["low"] <= 0 <= row["high"] else BLUE
            if known:
                axis.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=2)
            points = list(row["differences"].values())
            axis.plot(points, [place - 0.3] * len(points), "|", color=colour, markersize=5)
            axis.plot(row["mean"], place, "o", color=colour, markersize=5)
        axis.set_yticks(range(len(rows)), [label for label, _ in reversed(rows)], fontsize=7)
        axis.set_title(title)
        axis.set_ylim(-0.7, len(rows) - 0.3)
    save(figure, "forest")


def band(plt) -> None:
    """Rates and KL over the epochs: means over the seeds of the first study's Typhoon runs."""
    figure, axes = plt.subplots(1, 3, figsize=(9.2, 3), layout="constrained")
    runs = {}  # (task, spread) -> the epochs of each seed
    for path in (STUDY / "first").glob("*-typhoon-*.json"):
        log = stats.json.loads(path.read_text(encoding="utf-8"))
        setting = log["identity"]["task"], log["identity"]["spread"]
        runs.setdefault(setting, []).append(log["mlm"]["epochs"])
    for axis, spread in zip(axes, (0.4, 1.0)):
        seeds = runs["mrpc", spread]
        numbers = range(1, len(seeds[0]) + 1)

        def over_epochs(quantile):
            return [stats.mean(epochs[number - 1]["band"][quantile] for epochs in seeds)
                    for number in numbers]

        for low, high, alpha in (("lowest", "highest", 0.15), ("5%", "95%", 0.3),
                                 ("25%", "75%", 0.5)):
            axis.fill_between(numbers, over_epochs(low), over_epochs(high), color=BLUE,
                              alpha=alpha, linewidth=0)
        axis.plot(numbers, over_epochs("50%"), color=BLUE)
        axis.axhline(0.3, color=GREY, linewidth=0.8, linestyle=":")
        axis.set(title=f"MRPC, spread {spread:g}: all, 90%, 50% of rates", ylim=(0, 0.6),
                 xticks=numbers, xlabel="epoch")
    for (task, spread), seeds in sorted(runs.items()):
        kl = [stats.mean(epochs[number - 1]["kl_mean"] for epochs in seeds) for number in numbers]
        axes[2].plot(numbers, kl, "o-" if task == "mrpc" else "s--", markersize=4,
                     color=BLUE if spread == 0.4 else ORANGE, label=f"{task}, spread {spread:g}")
    axes[2].axhline(7e-4, color=GREY, linewidth=0.8, linestyle=":")  # the paper's
    axes[2].set(title="KL per token (dotted line: the paper's)", yscale="log", xticks=numbers,
                xlabel="epoch")
    axes[2].legend(fontsize=7, framealpha=0, labelcolor=GREY)
    save(figure, "band")


def save(figure, title: str) -> None:
    figure.savefig(STUDY / f"{title}.svg", transparent=True,
                   metadata={"Date": None, "Description": f"logs {fingerprint()}"})


def main() -> None:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams |= {"svg.hashsalt": "typhoon", "font.size": 8.5}
    for part in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        plt.rcParams[part] = GREY
    forest(plt)
    band(plt)


if __name__ == "__main__":
    main()
