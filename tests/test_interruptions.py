"""Kills, races and full disks: whatever happens to a grid, its directory holds only whole logs, and the same command ends it.

By hand, with more kills:  PYTHONPATH=. python tests/test_interruptions.py 300
"""
import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import tiny
import train

GRID = ["--masker", "random", "whole-word", "typhoon", "--seed", "0", "1", "2", "3"]  # 12 runs
# A server that has imported torch once forks each process, so that a kill costs the time of its run and no more.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["train"])


def work(arguments: list[str], output: Path, file_size: int | None = None) -> None:
    """The body of a process: train.py with these arguments."""
    train.torch.set_num_threads(1)
    if file_size:  # as on a full disk, no file grows beyond this
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    with open(output, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = train.command(train.parse_arguments(arguments))
    raise SystemExit(code)


def start(arguments: list[str], output: Path, file_size: int | None = None):
    process = PROCESSES.Process(target=work, args=(arguments, output, file_size))
    process.start()
    return process


def finish(arguments: list[str], output: Path, file_size: int | None = None) -> int:
    process = start(arguments, output, file_size)
    process.join(60)
    return process.exitcode


def logs(directory: Path) -> dict[str, dict]:
    """Every log in the directory, less its times; a log that is not whole raises."""
    found = {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}
    for log in found.values():
        assert log.pop("seconds")["total"] > 0
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The options of the grid and the logs that it ends with undisturbed."""
    return undisturbed(tmp_path_factory.mktemp("study"))


def undisturbed(folder: Path) -> tuple[list[str], dict[str, dict], float]:
    arguments = ["--data-dir", str(tiny.write_glue(folder / "glue")), "--model", str(tiny.write_checkpoint(folder / "tiny")),
                 *GRID]
    finish([*arguments, "--out", str(folder / "warm")], folder / "output")
    started = time.perf_counter()
    assert finish([*arguments, "--out", str(folder / "runs")], folder / "output") == 0, (folder / "output").read_text()
    return arguments, logs(folder / "runs"), time.perf_counter() - started


def kill_loop(study, folder: Path, kills: int) -> int:
    """Start the grid and kill it at a random moment, over and over. Returns how many grids were completed."""
    arguments, expected, duration = study
    generator, grids, left = random.Random(0), 0, kills
    while left:
        out = folder / f"grid{grids}"
        while left:
            process = start([*arguments, "--out", str(out)], folder / "output")
            process.join(generator.uniform(0, duration / 2))
            finished = process.exitcode == 0
            if not finished:
                os.kill(process.pid, generator.choice([signal.SIGKILL, signal.SIGTERM]))
                process.join()
                left -= 1
            there = logs(out) if out.exists() else {}
            assert there == {name: expected[name] for name in there}
            if finished:
                break
        assert finish([*arguments, "--out", str(out)], folder / "output") == 0
        assert logs(out) == expected
        assert {path.suffix for path in out.iterdir()} == {".json"}  # no claims, no partial files
        grids += 1
    return grids


def test_a_grid_survives_thirty_kills(study, tmp_path):
    assert len(study[1]) == 12
    assert kill_loop(study, tmp_path, 30) >= 1


def test_two_processes_share_a_grid_and_repeat_nothing(study, tmp_path):
    arguments, expected, _ = study
    processes = [start([*arguments, "--out", str(tmp_path / "runs")], tmp_path / str(n)) for n in range(2)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert logs(tmp_path / "runs") == expected
    done = [line.split(":")[0] for n in range(2) for line in (tmp_path / str(n)).read_text().splitlines()
            if line.startswith("result ")]
    assert sorted(done) == sorted(f"result {name}" for name in expected)
    assert {path.suffix for path in (tmp_path / "runs").iterdir()} == {".json"}


def test_a_claim_is_respected_while_its_process_lives_and_taken_over_afterwards(study, tmp_path):
    arguments, expected, _ = study
    one, name = [*arguments[:4], "--masker", "typhoon", "--out", str(tmp_path)], "mrpc-tiny-typhoon-mlm-spread0.4-seed0"
    with train.claimed(tmp_path / f"{name}.json"):
        assert finish(one, tmp_path / "output") == 0
        assert "another process is at it" in (tmp_path / "output").read_text() and not logs(tmp_path)
    (tmp_path / f"{name}.claim").write_text("left by a process that died")
    assert finish(one, tmp_path / "output") == 0
    assert logs(tmp_path) == {name: expected[name]} and not list(tmp_path.glob("*.claim"))


def test_a_full_disk_leaves_nothing_and_says_so(study, tmp_path):
    arguments, _, _ = study
    assert finish([*arguments, "--out", str(tmp_path / "runs")], tmp_path / "output", file_size=1500) == 2
    last = (tmp_path / "output").read_text().splitlines()[-1]
    assert last.startswith("train.py: ") and "File too large" in last and "--out" in last
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_with_one_line(study, tmp_path, root, number):
    process = subprocess.Popen([sys.executable, root / "train.py", *study[0], "--mlm-epochs", "1000", "--out", tmp_path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not process.stdout.readline().startswith("  mlm 2/"):
        pass
    process.send_signal(number)
    error = process.communicate(timeout=30)[1].strip()
    assert process.returncode == 128 + number
    assert error.startswith(f"train.py: stopped by {number.name}") and "\n" not in error
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        number_of_kills = int(sys.argv[1])
        completed = kill_loop(undisturbed(Path(temporary)), Path(temporary), number_of_kills)
        print(f"{number_of_kills} kills, {completed} grids of 12 runs completed, every log whole and as undisturbed")
