"""The logs of our own study, in tests/study: whole, of one recipe, and what the README shows."""
import json
import re
from pathlib import Path

import pytest

import stats

STUDY = Path(__file__).parent / "study"
README = Path(__file__).parent.parent / "README.md"


def section(title: str) -> str:
    return README.read_text(encoding="utf-8").split(f"## {title}")[1].split("\n## ")[0]


def test_every_table_of_results_is_what_stats_prints_from_the_logs(capsys):
    assert stats.main([str(STUDY)]) == 0
    printed = capsys.readouterr().out
    blocks = re.findall(r"```text\n(.*?)```", section("Results"), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        assert block in printed


def test_the_parts_of_the_study_can_be_compared(capsys):
    for part, runs in ((".", 40), ("rank", 6), ("control", 10), ("fp32", 4)):
        assert len(list((STUDY / part).glob("*.json"))) == runs
    assert stats.main([str(STUDY), "--compare", "spread"]) == 0
    assert "1.0 minus baseline" in capsys.readouterr().out
    assert stats.main([str(STUDY), str(STUDY / "control"), "--compare", "mlm_epochs"]) == 0
    assert "3 minus baseline" in capsys.readouterr().out
    assert stats.main([str(STUDY / "rank"), "--compare", "objective"]) == 0
    printed = capsys.readouterr().out
    assert "mae minus baseline" in printed and "Table 4. Effective rank" in printed


@pytest.mark.parametrize("path", sorted(STUDY.rglob("*.json")), ids=lambda path: path.stem)
def test_a_log_is_small_of_real_data_and_of_the_defaults(path):
    log = json.loads(path.read_text(encoding="utf-8"))
    assert log["run"] == path.stem and not log["sample"]
    assert (log["train_examples"], log["dev_examples"]) in ((3668, 408), (8551, 1043))
    identity = log["identity"]
    assert identity["mlm_epochs"] == (0 if path.parent.name == "control" else 3)
    assert identity["cls_epochs"] == 3 and identity["budget"] == 0.3
    assert len(log["classifier"]["epochs"][0]["predictions"]) == log["dev_examples"]
    assert path.stat().st_size < 30_000
    assert "/" not in json.dumps({key: log[key] for key in ("environment", "newly_initialised")})
