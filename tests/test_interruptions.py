"""Kills, races, full disks and missing locks: whatever happens to a grid, its directory holds only
whole logs, and the same command ends it.

By hand, with more kills:  python tests/test_interruptions.py 300
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tiny  # noqa: E402
import train  # noqa: E402

GRID = ["--masker", "random", "whole-word", "typhoon", "--seed", "0", "1", "2",
        "--mlm-epochs", "1", "--cls-epochs", "1"]  # 9 runs
# A server that has imported torch once forks each process: a kill costs its run's time, no more.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["train"])


def work(arguments: list[str], output: Path, largest_file: int | None) -> None:
    """The body of a process: train.py with these arguments."""
    train.torch.set_num_threads(1)
    if largest_file:  # as on a full disk, no file grows beyond this
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    with open(output, "w") as file, contextlib.redirect_stdout(file), \
            contextlib.redirect_stderr(file):
        code = train.main(arguments)
    raise SystemExit(code)


def start(arguments: list[str], output: Path, largest_file: int | None = None):
    process = PROCESSES.Process(target=work, args=(arguments, output, largest_file))
    process.start()
    return process


def finish(arguments: list[str], output: Path, largest_file: int | None = None) -> int:
    process = start(arguments, output, largest_file)
    process.join(600)
    return process.exitcode


def logs(directory: Path) -> dict[str, dict]:
    """Every log in the directory, less its times; a log that is not whole raises."""
    found = {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}
    for log in found.values():
        assert log.pop("seconds") > 0
    return found


def undisturbed(folder: Path) -> tuple[list[str], dict[str, dict], float]:
    """The options of the grid, the logs that it ends with, and how long it takes."""
    arguments = ["--device", "cpu", "--data-dir", str(tiny.write_glue(folder / "glue")),
                 "--model", str(tiny.write_checkpoint(folder / "tiny")), *GRID]
    finish([*arguments, "--out", str(folder / "warm")], folder / "output")
    started = time.perf_counter()
    code = finish([*arguments, "--out", str(folder / "runs")], folder / "output")
    assert code == 0, (folder / "output").read_text()
    return arguments, logs(folder / "runs"), time.perf_counter() - started


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("study"))


def kill_loop(study, folder: Path, kills: int) -> int:
    """Start the grid and kill it at a random moment, over and over. Returns the grids completed."""
    arguments, expected, duration = study
    draw = random.Random(0)
    grids = 0
    while kills:
        out = folder / f"grid{grids}"
        finished = False
        while kills and not finished:
            process = start([*arguments, "--out", str(out)], folder / "output")
            process.join(draw.uniform(0, duration / 2))
            finished = process.exitcode == 0
            if not finished:
                os.kill(process.pid, draw.choice([signal.SIGKILL, signal.SIGTERM]))
                process.join()
                kills -= 1
            there = logs(out) if out.exists() else {}
            assert there == {name: expected[name] for name in there}
        assert finish([*arguments, "--out", str(out)], folder / "output") == 0
        assert logs(out) == expected
        grids += 1
    return grids


def test_a_grid_survives_twenty_kills(study, tmp_path):
    assert len(study[1]) == 9
    assert kill_loop(study, tmp_path, 20) >= 1


def test_two_processes_share_a_grid_and_repeat_nothing(study, tmp_path):
    arguments, expected, _ = study
    out = tmp_path / "runs"
    outputs = [tmp_path / "one", tmp_path / "two"]
    processes = [start([*arguments, "--out", str(out)], output) for output in outputs]
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [0, 0]
    assert logs(out) == expected
    lines = [line for output in outputs for line in output.read_text().splitlines()]
    done = [line.split(":")[0] for line in lines if line.startswith("result ")]
    assert sorted(done) == sorted(f"result {name}" for name in expected)
    assert {path.suffix for path in out.iterdir()} == {".json"}  # no claims, no partial files


def test_a_claim_is_respected_while_its_process_lives_and_free_afterwards(study, tmp_path):
    arguments, expected, _ = study
    name = "mrpc-tiny-typhoon-mlm-spread0.4-seed0"
    one = [*arguments, "--masker", "typhoon", "--seed", "0", "--out", str(tmp_path)]
    with train.claim(tmp_path / f"{name}.json") as mine:
        assert mine
        assert finish(one, tmp_path / "output") == 0
        assert "another process is at it" in (tmp_path / "output").read_text()
        assert not logs(tmp_path)
    (tmp_path / f"{name}.claim").write_text("left by a process that died")
    assert finish(one, tmp_path / "output") == 0
    assert logs(tmp_path) == {name: expected[name]} and not list(tmp_path.glob("*.claim"))


class NoLocks:
    LOCK_EX = LOCK_NB = 0

    @staticmethod
    def flock(*_):
        raise OSError(38, "Function not implemented")


@pytest.mark.parametrize("fcntl", [NoLocks, None], ids=["a file system without locks", "Windows"])
def test_without_locks_the_runs_go_on_and_it_is_said_once(study, tmp_path, monkeypatch, capsys,
                                                          fcntl):
    arguments, expected, _ = study
    monkeypatch.setattr(train, "fcntl", fcntl)
    train.print_once.cache_clear()
    assert train.main([*arguments, "--seed", "0", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("NOTICE: no file locks here") == 1
    assert len(logs(tmp_path)) == 3


def test_a_full_disk_leaves_nothing_and_says_so(study, tmp_path):
    out = tmp_path / "runs"
    assert finish([*study[0], "--out", str(out)], tmp_path / "output", largest_file=1500) == 2
    last = (tmp_path / "output").read_text().splitlines()[-1]
    assert last == f"train.py: {out}: File too large; check that path and its disk, or name another"
    assert not list(out.iterdir())


def test_ctrl_c_ends_with_one_line(study, tmp_path, root):
    process = subprocess.Popen(
        [sys.executable, root / "train.py", *study[0], "--mlm-epochs", "1000", "--out", tmp_path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell ignores Ctrl-C for what it runs in the background, these tests perhaps among it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while not process.stdout.readline().startswith("  mlm 2/"):
        pass
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=120)[1].strip()
    assert process.returncode == 130
    assert error.startswith("train.py: stopped") and "\n" not in error
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        number_of_kills = int(sys.argv[1])
        completed = kill_loop(undisturbed(Path(temporary)), Path(temporary), number_of_kills)
        print(f"{number_of_kills} kills, {completed} grids completed, every log as undisturbed")
