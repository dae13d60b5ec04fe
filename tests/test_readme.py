"""The README's code blocks, executed as written, and the names that it speaks of."""
import importlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import train

SCRIPTS = ("typhoon.py", "train.py", "models.py", "glue_data.py", "stats.py")


@pytest.fixture(scope="module")
def readme():
    return (train.SAMPLE.parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)


def commands(readme: str) -> list[str]:
    return [line for block in blocks(readme, "bash") for line in block.splitlines()]


def execute(line: str, folder) -> str:
    """One command line of the README in a shell, where python is this one, without a network."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TYPHOON_CACHE": str(folder / "cache"),
                                "HF_HOME": str(folder), "PYTHONPATH": ""}
    environment.pop("HF_HUB_CACHE", None)
    line = re.sub(r"\bpython\b", sys.executable, line)
    done = subprocess.run(["bash", "-ec", line], cwd=folder, env=environment, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def project(root, tmp_path):
    """A copy of the project that a reader may edit."""
    for name in SCRIPTS:
        shutil.copy(root / name, tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "sample").symlink_to(root / "tests" / "sample")
    return tmp_path


def test_the_main_command_prints_what_the_readme_shows(readme, project):
    main = commands(readme)[1]
    assert main == "python train.py --masker typhoon --seed 3"
    printed = execute(main, project)

    def shape(text):
        """Without numbers, tokens and this machine's paths: another CPU may print others."""
        text = re.sub(r"\S*/(?=tests/sample)", "", text)
        text = re.sub(r'"[^"]+"', '"..."', text).replace("cuda", "cpu")
        lines = [re.sub(r"[\d.]+(e[+-]\d+)?", "#", line) for line in text.splitlines()]
        return [line for line in lines if not line.startswith("NOTICE")]

    [shown] = [block for block in blocks(readme, "text") if "NOTICE" in block]
    assert printed.startswith("NOTICE: the real data or model is missing (")
    shown = [line for line in shape(shown) if line.strip() != "#"]  # the "..." of left-out lines
    printed = shape(printed)
    assert len(printed) > len(shown) >= 5
    assert [line for line in shown if line not in printed] == []
    assert "Table 1" in execute("python stats.py runs/", project)


def test_every_command_of_the_readme_is_valid(readme):
    lines = [line for line in commands(readme) if line.startswith("python train.py")]
    assert len(lines) >= 5
    for line in lines:
        line = line.replace("rare-word", "random")  # which the reader has yet to write
        train.parse_arguments(line.split()[2:])


def test_the_study_is_ninety_runs(readme):
    [study] = [line for line in commands(readme) if "bert-base" in line]
    options = train.parse_arguments(study.split()[2:])
    assert len(train.plan(options, options.task, options.model)) == 90


VARIANTS = ["", "--objective mae", "--precision bf16"]


def test_the_ideas_of_the_readme_run_at_the_budget_and_are_compared(readme, project):
    """One at each level: rates by type, positions, and what only `begin` gives."""
    ideas = blocks(readme, "python")
    assert len(ideas) == 2 and "`cat tests/ideas/span.py >> typhoon.py`" in readme
    ideas.append((train.SAMPLE.parent / "ideas" / "span.py").read_text(encoding="utf-8"))
    with open(project / "typhoon.py", "a", encoding="utf-8") as file:
        file.write("\n\n" + "\n\n".join(ideas))
    names = re.findall(r'MASKERS\["(.+)"\]', "".join(ideas))
    for number, variant in enumerate(VARIANTS):
        execute(f"python train.py --sample --task cola --masker {' '.join(names)} --mlm-epochs 1 "
                f"--cls-epochs 1 {variant} --out runs{number}", project)
        found = [json.loads(path.read_text()) for path in (project / f"runs{number}").iterdir()]
        assert {log["identity"]["masker"] for log in found} == set(names)
        for log in found:
            [epoch] = log["mlm"]["epochs"]
            assert epoch["notices"] == [] and abs(epoch["masked_fraction"] - 0.3) < 0.02
            assert (epoch["kl_mean"] is None) == (log["identity"]["masker"] == "span")
    [training, comparing] = [line for line in commands(readme) if "rare-word" in line]
    execute(f"{training} --sample --task cola --mlm-epochs 1 --cls-epochs 1", project)
    assert "rare-word minus baseline" in execute(comparing, project)


def test_every_function_that_the_readme_names_exists(readme):
    names = re.findall(r"`(typhoon|train|models|glue_data|stats)\.(\w+(?:\.\w+)?)`", readme)
    assert len(names) > 12
    for module, name in names:
        if name != "py":
            value = importlib.import_module(module)
            for part in name.split("."):
                value = getattr(value, part)
