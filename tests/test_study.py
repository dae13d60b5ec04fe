"""The logs of our two studies, in tests/study: whole, of one recipe each, and what README shows."""
import json
import re
from pathlib import Path

import make_figures
import make_results
import pytest

import stats
import train

STUDY = Path(__file__).parent / "study"
README = (STUDY.parent.parent / "README.md").read_text(encoding="utf-8")
MINILM = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # all-MiniLM-L6-v2
SECOND = sorted([*STUDY.glob("*.json"), *STUDY.glob("controls/*.json")])


def test_results_are_what_the_logs_say():
    """python tests/make_results.py --write"""
    assert make_results.section() in README
    results = make_results.section().strip().splitlines()
    assert len(results) <= 70 and "nan" not in " ".join(results)


def test_a_number_of_results_changes_with_a_log(monkeypatch):
    before = make_results.section()
    read_log = stats.read_log

    def other(path, epoch):
        run = read_log(path, epoch)
        return run | {"score": run["score"] + 0.001 * (run["masker"] == "typhoon")}

    monkeypatch.setattr(stats, "read_log", other)
    assert make_results.section() != before


@pytest.mark.parametrize("figure", ["forest", "band"])
def test_the_figures_are_of_todays_logs(figure):
    """python tests/make_figures.py"""
    content = (STUDY / f"{figure}.svg").read_text(encoding="utf-8")
    assert f"logs {make_figures.fingerprint()}" in content
    assert re.search(rf"!\[[^\]]{{40,}}\]\(tests/study/{figure}\.svg\)", README)  # with alt text


def commands() -> list[str]:
    results = README.split("## Results\n")[1].split("\n## ")[0]
    [block] = re.findall(r"```bash\n(.*?)```", results, re.DOTALL)
    return [line for line in block.splitlines() if line.startswith("python stats.py ")]


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_results_print_comparisons(command, root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    assert stats.main(command.split()[2:]) == 0
    printed = capsys.readouterr().out
    assert "Table 2" in printed and "no pair" not in printed


def test_logs_of_two_recipes_do_not_stand_in_one_table(capsys):
    assert stats.main([str(STUDY), str(STUDY / "first")]) == 2
    assert "differ in " in capsys.readouterr().err or "are one run" in capsys.readouterr().err


def test_the_first_study_is_whole():
    for part, runs in (("", 40), ("rank", 6), ("unadapted", 10), ("fp32", 4)):
        assert len(list((STUDY / "first" / part).glob("*.json"))) == runs


@pytest.mark.parametrize("path", sorted(STUDY.rglob("*.json")), ids=lambda path: path.stem)
def test_a_log_is_small_of_real_data_and_of_the_defaults(path):
    log = json.loads(path.read_text(encoding="utf-8"))
    assert log["run"] == path.stem and not log["sample"]
    assert (log["train_examples"], log["dev_examples"]) in ((3668, 408), (8551, 1043))
    identity = log["identity"]
    assert identity["backbone"]["model.safetensors"] == MINILM
    assert identity["model"] == "all-MiniLM-L6-v2"
    assert identity["mlm_epochs"] == (0 if path.parent.name == "unadapted" else 3)
    assert identity["cls_epochs"] == 3 and identity["budget"] == 0.3
    assert identity["recipe"] == (train.RECIPE if path in SECOND else 1)
    if path in SECOND and identity["masker"] in train.typhoon.MASKERS:
        assert identity["method"] == train.method_fingerprint(identity["masker"])
    assert len(log["classifier"]["epochs"][0]["predictions"]) == log["dev_examples"]
    assert path.stat().st_size < 30_000
    assert "/" not in json.dumps({key: log[key] for key in ("environment", "newly_initialised")})
