"""Prints the README's Results from the logs of tests/study, so that no number in them can go stale:

    python tests/make_results.py            # what the section should be
    python tests/make_results.py --write    # and puts it into README.md

tests/test_study.py compares the two. Where the logs would no longer bear a sentence out, an
assertion here says which.
"""
import json
import re
import sys
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import stats  # noqa: E402
from make_figures import STUDY, compared, folders  # noqa: E402


def one(part: str, treatment: str, baseline: str = "random", axis: str = "masker", **where) -> dict:
    """The comparison of these two; where: its task, its spread."""
    rows = [row for row in compared(part, axis, treatment, baseline)
            if all(row[key] == value for key, value in where.items())]
    [row] = rows
    return row


def scores_of(part: str, **where) -> dict:
    rows = stats.scores(stats.read_logs(folders(part)))
    [row] = [row for row in rows if all(row[key] == value for key, value in where.items())]
    return row


def interval(row: dict) -> str:
    """+.016 (+.008 to +.025)"""
    mean, low, high = (signed(row[key]) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".")


def share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def contains_zero(row: dict) -> bool:
    return row["low"] <= 0 <= row["high"]


def losses(part: str, masker: str, task: str) -> list[str]:
    """Dev MLM loss after each epoch, mean over the seeds."""
    logs = [json.loads(path.read_text(encoding="utf-8")) for folder in folders(part)
            for path in folder.glob(f"{task}-*-{masker}-*.json")]
    epochs = zip(*(log["mlm"]["epochs"] for log in logs))
    return [f"{stats.mean(epoch['dev_loss'] for epoch in seeds):.2f}" for seeds in epochs]


def comparison_table() -> str:
    columns = ("task", "treatment", "baseline", "n", "mean", "low", "high", "same")
    rows = [row for treatment in ("typhoon", "whole-word") for row in compared("first", "masker",
                                                                             treatment, "random")]
    for treatment in ("frequent-only", "random-redrawn"):
        rows += [row | {"treatment": f"{treatment} *"}
                 for row in compared("", "masker", treatment, "random")]
    rows += [row | {"treatment": "random", "baseline": "not adapted"}
             for row in compared("first unadapted", "mlm_epochs", "3", "0")]
    for row in rows:
        if row["treatment"] == "typhoon" and row["spread"] != 0.4:
            row["treatment"] += f", spread {row['spread']:g}"
    return stats.table(columns, rows, "markdown")


def paragraphs() -> list[str]:
    typhoon, cola = (one("first", "typhoon", task=task, spread=0.4) for task in ("mrpc", "cola"))
    words, cola_words = (one("first", "whole-word", task=task) for task in ("mrpc", "cola"))
    control = one("", "frequent-only", task="mrpc")
    floors = compared("", "masker", "random-redrawn", "random")  # none until they have been run
    pays, cola_pays = (one("first unadapted", "3", "0", "mlm_epochs", task=task)
                       for task in ("mrpc", "cola"))
    minutes = [run["seconds"] / 60 for part in ("", "first")
               for run in stats.read_logs(folders(part))]
    mae = one("first/rank", "mae", "mlm", "objective")
    seeds = scores_of("", masker="random", task="mrpc")
    first_seeds = scores_of("first", masker="random", task="mrpc")
    first = {task: scores_of("first", masker="typhoon", task=task, spread=0.4)
             for task in ("mrpc", "cola")}
    wide = scores_of("first", masker="typhoon", task="mrpc", spread=1.0)
    assert abs(control["same"] - seeds["same"]) < 0.03
    assert max(each["ranking"] for each in first.values()) < 0.15
    times = wide["kl_mean"] / first["mrpc"]["kl_mean"]
    assert wide["score"] < first["mrpc"]["score"]
    assert all(map(contains_zero, (typhoon, cola, words, cola_words)))
    assert 0.8 < cola["detectable"] / cola_pays["mean"] < 1.25
    assert not contains_zero(pays) and not contains_zero(cola_pays)
    assert typhoon["tost_p"] < 0.05 and words["tost_p"] < 0.05  # each alone
    assert typhoon["same"] > first_seeds["same"]

    found = stats.finding(control["mean"], control["p"], control["tost_p"], alpha=0.05)
    answer, what_the_control_says = {
        "worse": (
            "a very bad choice does, on MRPC: to mask function words and punctuation alone costs "
            "F1. Typhoon's choice shows no difference from random masking: within .01 F1 on MRPC; "
            "on CoLA five seeds could not tell",
            "That is about what adaptation gains at all: such a masker hardly adapts. So on MRPC "
            "the set-up sees a very bad choice; what a subtler one does, it does not say."),
        "undecided": (
            "Typhoon's choice makes no difference that five seeds could see. Even a choice as bad "
            "as function words and punctuation alone is not beyond doubt worse",
            f"It was behind in {control['n'] - control['ahead']} of them and changes as many "
            "predictions as another seed does, but so few seeds do not settle its score: they "
            f"find a true difference of {share(control['detectable'])}."),
        "equivalent": (
            "not here: even function words and punctuation alone do as well",
            "So on this backbone and task the choice of tokens cannot matter much."),
    }[found.replace("small loss", "worse")]
    assert found != "worse" or abs(control["mean"] + pays["mean"]) < 0.005
    control_loss, random_loss = losses("", "frequent-only", "mrpc"), losses("", "random", "mrpc")
    return [
        f"**Does it matter which tokens are masked?** In our runs {answer}.",
        "The backbone is `sentence-transformers/all-MiniLM-L6-v2`: "
        "MiniLM-L6-H384-uncased after contrastive training on about a billion sentence pairs. So "
        "it knows paraphrases before it sees MRPC, where less is left for adaptation to add, and "
        "its MLM head is drawn anew. All defaults, `--precision bf16`, one CPU thread, "
        f"{min(minutes):.0f} to {max(minutes):.0f} minutes a run on busy cores. "
        f"The first study (`tests/study/first`: both tasks, the three maskers, "
        "seeds 0 to 4) was made before fine-tuning's last layer was cut to [CLS], which draws "
        "other dropout; the second (`tests/study`, * in the table) has the controls, on MRPC. "
        "Runs of the two are never compared.",
        "![Mean difference of each comparison with its 95% interval and the single seeds: "
        "Typhoon and whole-word against random masking lie about zero, frequent-only below it, "
        "random masking against no adaptation above it.](tests/study/forest.svg)",
        "Differences are paired by seed: F1 on MRPC, Matthews on CoLA; `low` and `high` bound the "
        "95% interval; `same` is the share of dev examples that both of a pair predict "
        "alike. In the figure the grey band is the margin of .01.",
        comparison_table(),
        f"- **The instrument sees adaptation.** Random masking minus none: {interval(pays)} F1 and "
        f"{interval(cola_pays)} Matthews.",
        f"- **It does not see Typhoon.** Minus random masking: {interval(typhoon)} on MRPC, which "
        f"is within .01 F1 (equivalence test), and {interval(cola)} on CoLA, where five seeds find "
        f"a true difference of {share(cola['detectable'])} with 80% power: as much as adaptation "
        f"gains there, so that CoLA says little. One seed alone might have said anything from "
        f"{signed(cola['lowest'])} to {signed(cola['highest'])} there.",
        f"- **A control expected to matter:** `frequent-only` masks nothing but the most frequent "
        f"types, at the same budget. Minus random: {interval(control)} F1 over {control['n']} "
        f"seeds; its adapted models' dev loss, at random positions, is {control_loss[-1]}, "
        f"random's "
        f"{random_loss[-1]}. "
        f"{what_the_control_says}",
        *(f"- **The noise floor:** random masking with its masks alone drawn anew: "
          f"{interval(floor)} F1 over {floor['n']} seeds, and {share(floor['same'])} of the "
          "predictions alike. That much is the luck of the masks." for floor in floors),
        f"- **Typhoon moves fewer predictions than a seed, the control as many.** Alike on "
        f"MRPC, in "
        f"the first study: Typhoon and random {share(typhoon['same'])}, two seeds of random "
        f"{share(first_seeds['same'])}. In the second: frequent-only and random "
        f"{share(control['same'])}, two seeds of random {share(seeds['same'])}.",
        f"- **Probably why:** the band is narrow and the ranking is not reproduced. 90% of "
        f"the tokens have "
        f"rates from {share(first['mrpc']['5%'])} to {share(first['mrpc']['95%'])}; two seeds' "
        f"rates of the frequent types correlate at {share(first['mrpc']['ranking'])} (MRPC) and "
        f"{share(first['cola']['ranking'])} (CoLA). Spread 1, with {times:.0f} times the KL, "
        "shows no gain either.",
        f"- **MAE-LM beside MLM** (MRPC, random masking, {mae['n']} seeds, "
        f"`tests/study/first/rank`): "
        f"{interval(mae)} F1, not distinguishable; its decoder starts from nothing.",
        "![The band of Typhoon's masking rates by epoch, narrow at spread 0.4 and wider at 1, and "
        "the KL from uniform masking, which falls after the first epoch.](tests/study/band.svg)",
        f"**What would still be doubted.** Five seeds; the control and Typhoon stand in different "
        f"studies, and p ({control['p']:.3f} for the control) is not adjusted over the table; "
        f"three epochs, after which the dev MLM loss "
        f"still fell ({', '.join(losses('first', 'random', 'mrpc'))} on MRPC); one small backbone "
        "that knew the task's subject; the controls on MRPC alone, and not yet with rare types "
        "only. Runs at 20 epochs are still to be made.",
        "The paper's own findings (its abstract; not produced here): on MRPC Typhoon stays within "
        "0.004 F1 of the best baseline; of 12 comparisons none is significant and every 95% "
        "interval contains zero; the KL is 7e-4 nats per token.",
    ]


def section() -> str:
    parts = []
    for paragraph in paragraphs():
        if paragraph.startswith(("|", "!")):
            parts.append(paragraph)
        else:
            hanging = "  " if paragraph.startswith("- ") else ""
            parts.append(fill(paragraph, 98, subsequent_indent=hanging, break_on_hyphens=False,
                              break_long_words=False))
    text = re.sub(r"(?m)^(  .*|- .*)\n\n- ", r"\1\n- ", "\n\n".join(parts))  # one list
    commands = ("```bash\n"
                "python train.py --task mrpc cola --masker random whole-word typhoon --seed "
                "0 1 2 3 4 --precision bf16 --model sentence-transformers/all-MiniLM-L6-v2\n"
                "python stats.py tests/study/first\n"
                "python stats.py tests/study/first tests/study/first/unadapted --compare "
                "mlm_epochs\n"
                "python stats.py tests/study tests/study/controls --treatment frequent-only "
                "--baseline random\n```")
    return f"## Results\n\n{text}\n\n{commands}\n\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        readme = ROOT / "README.md"
        text = readme.read_text(encoding="utf-8")
        before, rest = text.split("## Results\n")
        after = rest[rest.index("## Where the rules"):]
        readme.write_text(before + section() + after, encoding="utf-8")
    print(section(), end="")
