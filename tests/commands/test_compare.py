import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

import attnmix
from attnmix.cli import main
from attnmix.training.checkpoint import has_checkpoint, load_checkpoint

TINY = [
    "--model_options.embed_dim", "16", "--model_options.depth", "2", "--model_options.num_heads", "2",
    "--epochs", "1", "--device", "cpu", "--threads", "1", "--schedule.warmup_epochs", "0",
]  # fmt: skip
SCENES = [*TINY, "--data_options.train_count", "64", "--data_options.test_count", "48", "--batch_size", "16"]


def compare(out, *words, recipe="quickstart", settings=SCENES):
    return main(["compare", recipe, *settings, "--out", str(out), *words])


def read(out):
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """One comparison that several tests look at."""
    out = tmp_path_factory.mktemp("compared")
    methods = "none,cutmix,transmix,smmix:mixup_prob=0"
    assert compare(out, "--methods", methods, "--seeds", "0,1", "--jobs", "2") == 0
    return out


@pytest.mark.slow
def test_it_writes_results_figures_and_a_page(compared):
    results = read(compared)
    assert results["methods"] == ["none", "cutmix", "transmix", "smmix (mixup_prob=0)"]
    assert len(results["runs"]) == 8
    for row in results["summary"]:
        runs = [run for run in results["runs"] if run["label"] == row["label"]]
        assert sorted(run["seed"] for run in runs) == [0, 1]
        assert row["top1_mean"] == pytest.approx(sum(run["top1"] for run in runs) / 2)
        assert row["top1_std"] == pytest.approx(abs(runs[0]["top1"] - runs[1]["top1"]) / math.sqrt(2))
        assert row["step_interval"][0] <= row["step_ratio"] <= row["step_interval"][1]
        assert (row["label_content_error"] is None) == (row["label"] == "none")
    assert [row["mixup_share"] for row in results["summary"]] == [0, 0, 0.5, 0]
    assert len(results["controls"]) == 6
    assert {path.name for path in (compared / "figures").glob("*.png")} >= {
        "learning-curves.png", "accuracy-cost.png", "gallery.png", "confusion-smmix-mixup-prob-0.png",
    }  # fmt: skip
    page = (compared / "report.html").read_text()
    assert "smmix (mixup_prob=0)" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)


@pytest.mark.slow
def test_all_methods_start_from_the_same_weights_and_see_the_same_images(tmp_path, monkeypatch):
    seen: dict[str, list] = {}
    forward = attnmix.MixTask.forward

    def spy(task, images, labels):
        weights = torch.cat([parameter.detach().flatten() for parameter in task.view.model.parameters()])
        seen.setdefault(type(task.method).__name__, []).append((images.clone(), labels.clone(), weights))
        return forward(task, images, labels)

    monkeypatch.setattr(attnmix.MixTask, "forward", spy)
    for name in ("none", "smmix"):
        assert main(["train", "quickstart", *SCENES, "--method", name, "--out", str(tmp_path / name)]) == 0
    for none, smmix in zip(seen["NoMix"], seen["SMMix"], strict=True):
        assert none[0].equal(smmix[0])
        assert none[1].equal(smmix[1])
    assert seen["NoMix"][0][2].equal(seen["SMMix"][0][2])
    assert not seen["NoMix"][-1][2].equal(seen["SMMix"][-1][2])


@pytest.mark.slow
def test_given_again_it_trains_nothing_and_extends_what_is_asked_for(compared, capsys):
    before = {path: path.stat().st_mtime_ns for path in compared.glob("runs/*/run.json")}
    assert compare(compared, "--methods", "none,cutmix,mixup", "--seeds", "0") == 0
    assert "2 of 3 runs are done already" in capsys.readouterr().out
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert read(compared)["methods"] == ["none", "cutmix", "mixup"]


@pytest.mark.slow
def test_a_changed_recipe_is_refused_rather_than_mixed_in(compared, capsys):
    assert compare(compared, "--methods", "none", "--lr", "0.5") == 2
    assert "was begun with lr 0.002, not 0.5" in capsys.readouterr().err
    assert compare(compared, "--methods", "none", "--epochs", "3") == 2
    assert "was begun with epochs 1, not 3" in capsys.readouterr().err


@contextlib.contextmanager
def begun(out, methods, *words):
    """The command in a process group of its own, three epochs of each run over, and what counts them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "attnmix", "compare", "quickstart", *SCENES, *words,
         "--methods", ",".join(methods), "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        # a test run in the background ignores Ctrl-C, and what it starts would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    files = [out / "runs" / f"{method}-seed0" / "metrics.jsonl" for method in methods]

    def epochs():
        return min(len(file.read_text().splitlines()) if file.is_file() else 0 for file in files)

    deadline = time.monotonic() + 500
    while epochs() < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    try:
        yield process, epochs
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_ctrl_c_ends_it_with_every_run_saved(tmp_path):
    with begun(tmp_path, ["none", "cutmix"], "--epochs", "2000", "--jobs", "2") as (process, _):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        told, _ = process.communicate(timeout=100)
        assert process.returncode == 130
    assert "interrupted: the same command goes on from here" in told
    assert "Traceback" not in told
    for run in ("none-seed0", "cutmix-seed0"):
        assert has_checkpoint(tmp_path / "runs" / run)


@pytest.mark.slow
def test_a_run_that_fails_ends_the_others_at_once(tmp_path):
    with begun(tmp_path, ["none", "cutmix"], "--epochs", "2000", "--jobs", "2") as (process, _):
        in_the_way = tmp_path / "runs" / "cutmix-seed0" / "metrics.jsonl.part"
        while not in_the_way.is_dir():
            with contextlib.suppress(FileExistsError):  # the run may just be writing its file there
                in_the_way.mkdir()
        told, _ = process.communicate(timeout=100)
        assert process.returncode == 2
    assert "Is a directory" in told
    assert "Traceback" not in told
    assert 3 <= load_checkpoint(tmp_path / "runs" / "none-seed0" / "checkpoint.pt")["epoch"] < 2000


@pytest.mark.slow
def test_killed_it_goes_on_where_it_stopped(tmp_path):
    with begun(tmp_path, ["none"], "--epochs", "40") as (process, epochs):
        process.kill()
        process.wait()
        time.sleep(2)  # its worker ends with it
        stopped_at = epochs()
        time.sleep(1)
        assert 3 <= epochs() == stopped_at < 40
    metrics = tmp_path / "runs" / "none-seed0" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    assert compare(tmp_path, "--methods", "none", "--epochs", "40") == 0
    assert metrics.read_text().splitlines()[: stopped_at - 1] == lines[: stopped_at - 1]
    assert epochs() == 40


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "smix"], 'no method "smix"; did you mean "smmix"'),
        (["--methods", "none", "--seeds", "a"], "seeds 'a': want whole numbers"),
        (["--methods", "none", "--seeds", "1,1"], "named once"),
        (["--methods", "none", "--jobs", "0"], "jobs is 0"),
        (["--methods", "none", "--method_options.porb", "1"], 'no method here has the option "porb"'),
        (["--methods", "none", "--epoch", "3"], "--epoch"),
        (["--methods", "cutmix:seed=3"], "all methods take the seed of the command"),
    ],
)
def test_wrong_words_are_named(tmp_path, capsys, words, message):
    assert compare(tmp_path / "out", *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
