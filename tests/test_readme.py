"""The README's code blocks, executed as written, and what it says about names and defaults, against the code."""
import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import tiny
import train


@pytest.fixture(scope="module")
def readme():
    return (train.SAMPLE.parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)


def execute(line: str, folder, **environment) -> str:
    """One command line in a shell, where python is this one. No network is used."""
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin" / "python"
    if not python.exists():
        python.symlink_to(sys.executable)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TYPHOON_CACHE": str(folder / "cache"), "HF_HOME": str(folder),
                                "PYTHONPATH": os.pathsep.join(sys.path)} | environment
    line = re.sub(r"\bpython\b", sys.executable, line)
    done = subprocess.run(["bash", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_of_the_project(root, folder):
    for name in ("typhoon.py", "train.py", "models.py", "glue_data.py", "stats.py"):
        shutil.copy(root / name, folder)
    (folder / "tests").mkdir()
    (folder / "tests" / "sample").symlink_to(root / "tests" / "sample")


def test_the_main_command_and_the_statistics_as_written(readme, root, tmp_path):
    copy_of_the_project(root, tmp_path)
    main = blocks(readme, "bash")[0].splitlines()[1]
    assert main == "python train.py --masker typhoon --seed 3"
    printed = execute(main, tmp_path, PYTHONPATH="")

    def shape(text):  # numbers, the machine's own paths and its device aside
        text = re.sub(r"\S*/(?=tests/sample)", "", text).replace("examples, cuda", "examples, cpu, 2 threads")
        return [re.sub(r"[\d.]+(e[+-]\d+)?", "#", line) for line in text.splitlines() if not line.startswith("NOTICE")]

    assert shape(printed) == shape(blocks(readme, "text")[0])
    [statistics] = [line for block in blocks(readme, "bash") for line in block.splitlines() if line == "python stats.py runs/"]
    assert "Table 1" in execute(statistics, tmp_path, PYTHONPATH="")


def test_every_command_of_the_readme_is_valid(readme):
    lines = [line for block in blocks(readme, "bash") for line in block.splitlines()
             if line.startswith("python train.py") and "$" not in line]
    assert len(lines) >= 5
    for line in lines:
        train.parse_arguments(line.split()[2:])


def test_the_study_and_the_slurm_array_are_the_same_ninety_runs(readme, tmp_path):
    [study] = [line for block in blocks(readme, "bash") for line in block.splitlines() if "--seed 0 1 2 3 4" in line
               and "--task" in line]
    options = train.parse_arguments(study.split()[2:])
    expected = set(itertools.product(options.task, options.model, options.masker, map(str, options.seed)))
    [array] = [block for block in blocks(readme, "bash") if "SLURM" in block]
    ran = set()
    for number in range(90):
        line = array.replace("python train.py", "echo")
        words = subprocess.run(["bash", "-ec", line], env=os.environ | {"SLURM_ARRAY_TASK_ID": str(number)}, text=True,
                               capture_output=True, check=True).stdout.split()
        ran.add(tuple(words[1::2]))
    assert ran == expected and len(ran) == 90


def test_the_new_masker_of_the_readme_trains_and_is_compared(readme, root, tmp_path):
    copy_of_the_project(root, tmp_path)
    [masker] = [block for block in blocks(readme, "python") if "Masker" in block]
    assert len(masker.strip().splitlines()) <= 10
    with open(tmp_path / "typhoon.py", "a") as file:
        file.write("\n\n" + masker)
    inputs = f" --data-dir {tiny.write_glue(tmp_path / 'glue')} --model {tiny.write_checkpoint(tmp_path / 'tiny')}"
    [commands] = [block for block in blocks(readme, "bash") if "rare-word" in block]
    train_line, stats_line = commands.strip().splitlines()
    execute(train_line + inputs, tmp_path, PYTHONPATH="")
    printed = execute(stats_line, tmp_path, PYTHONPATH="")
    assert "rare-word" in printed and "whole-word" in printed
    log = json.loads((tmp_path / "runs" / "mrpc-tiny-rare-word-mlm-spread0.4-seed0.json").read_text())
    assert log["mlm"]["epochs"][0]["kl_per_token"] > 1e-4


def test_every_function_that_the_readme_names_exists(readme):
    names = re.findall(r"`(typhoon|train|models|glue_data|stats)\.(\w+(?:\.\w+)?)`", readme)
    assert len(names) > 15
    for module, name in names:
        if name != "py":
            value = importlib.import_module(module)
            for part in name.split("."):
                value = getattr(value, part)


def test_the_table_of_defaults_is_the_command_line_s(readme):
    options = vars(train.parse_arguments([]))
    table = dict(re.findall(r"^\| `--([\w-]+)` \| ([\w.-]+) \|", readme, re.MULTILINE))
    assert set(table) >= {name.replace("_", "-") for name in options} - {
        "task", "model", "masker", "seed", "data-dir", "sample", "out", "save", "effective-rank", "device", "precision"}
    for name, default in table.items():
        value = options[name.replace("-", "_")]
        assert type(value[0] if isinstance(value, list) else value)(default) == (value[0] if isinstance(value, list) else value)
