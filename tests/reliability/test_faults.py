"""Full disks, folders that cannot be written, signals and dead processes, as the command meets them."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from attnmix.training import load_recipe, save_recipe
from attnmix.training.checkpoint import load_checkpoint, load_latest
from tests.reliability.children import train_until
from tests.training.conftest import tiny_recipe

LONG = {"epochs": 2000, "schedule": {"warmup_epochs": 1}}
SOON = 60  # seconds in which a run whose process died has ended


def command(recipe, out, *more, processes=1):
    train = ["-m", "attnmix", "train", str(recipe), "--out", str(out), *more]
    if processes == 1:
        return [sys.executable, *train]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *launch, *train]


@pytest.fixture
def started():
    """started(recipe, out, processes=1): a run in a process of its own, some epochs old; ends with the test."""
    runs = []

    def start(recipe, out, *more, processes=1):
        run = subprocess.Popen(
            command(recipe, out, *more, processes=processes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            # a test run in the background ignores Ctrl-C, and what it starts would too
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        runs.append(run)
        until = time.monotonic() + 500
        metrics = out / "metrics.jsonl"
        while not metrics.is_file() or metrics.read_text().count("\n") < 3:
            assert run.poll() is None, run.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.2)
        return run

    yield start
    for run in runs:
        run.terminate()  # torchrun's workers have sessions of their own, and end with it
        try:
            run.wait(5 * SOON)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()


def saved(tmp_path, **changed):
    save_recipe(tiny_recipe(**{**LONG, **changed}), tmp_path / "recipe.yaml")
    return tmp_path / "recipe.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_with_its_code(started, tmp_path, number, code):
    recipe, out = saved(tmp_path), tmp_path / "run"
    run = started(recipe, out)
    run.send_signal(number)
    _, told = run.communicate(timeout=5 * SOON)
    assert run.returncode == code, told
    assert f"stopped by {number.name}, and saved: the same command with --resume goes on" in told
    assert "Traceback" not in told
    assert load_checkpoint(out / "checkpoint.pt")["epoch"] >= 3


@pytest.mark.slow
def test_a_signal_to_torchrun_ends_both_processes_saved(started, tmp_path):
    recipe, out = saved(tmp_path), tmp_path / "run"
    run = started(recipe, out, processes=2)
    run.send_signal(signal.SIGTERM)
    _, told = run.communicate(timeout=5 * SOON)
    assert "stopped by SIGTERM, and saved" in told
    state = load_checkpoint(out / "checkpoint.pt")
    assert state["num_processes"] == 2
    assert state["epoch"] >= 3


@pytest.mark.slow
def test_when_a_process_dies_the_other_ends(started, tmp_path):
    recipe, out = saved(tmp_path), tmp_path / "run"
    run = started(recipe, out, processes=2)
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    workers = [int(pid) for pid, parent in re.findall(r"^ *(\d+) +(\d+) ", found, re.M) if int(parent) == run.pid]
    killed = time.monotonic()
    os.kill(workers[-1], signal.SIGKILL)
    _, told = run.communicate(timeout=5 * SOON)
    seconds = time.monotonic() - killed
    print(f"the other process ended {seconds:.0f} s after")
    assert run.returncode != 0
    assert seconds < SOON
    assert "Signal 9 (SIGKILL)" in told or "exitcode  : -9" in told  # torchrun names who died, and of what
    assert load_latest(out)[1] is None


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_keeps_what_there_was(nursery, tmp_path):
    recipe = saved(tmp_path, epochs=4)
    assert nursery.run(train_until, recipe, tmp_path / "run", kill_in=["save", 3])["signal"] == signal.SIGKILL
    size = (tmp_path / "run" / "checkpoint.pt").stat().st_size
    ended = nursery.run(train_until, recipe, tmp_path / "run", resume=True, file_limit=size // 2)
    assert ended["signal"] == 0
    assert re.search(
        r"OSError: the checkpoint .* cannot be written \(.*\); the last whole checkpoint is", ended["error"]
    )
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["epoch"] == 2
    assert not list((tmp_path / "run").glob("*.part"))
    assert "OSError" in nursery.run(train_until, recipe, tmp_path / "run", resume=True, file_limit=100)["error"]
    assert load_recipe(tmp_path / "run" / "recipe.yaml") == load_recipe(recipe)
    assert nursery.run(train_until, recipe, tmp_path / "run", resume=True)["error"] == ""
    assert len(json.loads((tmp_path / "run" / "result.json").read_text())["history"]) == 4


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    from attnmix.cli import main

    assert main(["train", str(saved(tmp_path, epochs=1)), "--out", "/proc/attnmix-run"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert re.search(r"attnmix: error: .*/proc/attnmix-run", told)
    (tmp_path / "file").write_text("")
    assert main(["train", str(saved(tmp_path, epochs=1)), "--out", str(tmp_path / "file" / "run")]) == 2
    assert "Not a directory" in capsys.readouterr().err
