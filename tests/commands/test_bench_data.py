import json
import multiprocessing

import pytest
import torch
from PIL import Image

from attnmix.cli import main
from attnmix.commands import data_rates

TINY = [
    "--model_options.embed_dim", "16", "--model_options.depth", "1", "--model_options.num_heads", "2",
    "--data_options.train_count", "12", "--data_options.test_count", "16", "--batch_size", "4", "--device", "cpu",
]  # fmt: skip
QUICK = ["--batches", "2", "--steps", "1"]


def results(tmp_path, *words, recipe="quickstart", tiny=TINY):
    assert main(["bench", "data", recipe, *tiny, *QUICK, "--out", str(tmp_path / "out"), *words]) == 0
    return json.loads((tmp_path / "out" / "data.json").read_text())


def test_rates_a_verdict_and_files(tmp_path, capsys):
    found = results(tmp_path)
    (row,) = found["rows"]
    assert row["workers"] == 0
    assert row["batches"] == 2
    assert (
        0
        < row["training_images_per_second"]
        < min(row["loader_images_per_second"], row["model_images_per_second"])
    )
    assert found["settings"]["method"] == "cutmix"
    assert found["settings"]["machine"]["cores"]
    printed = capsys.readouterr().out
    assert "take turns" in " ".join(printed.split())
    assert str(tmp_path / "out" / "data.md") in printed
    assert "| 0 |" in (tmp_path / "out" / "data.md").read_text()


def test_each_number_of_workers_has_a_row_and_leaves_no_process(tmp_path):
    found = results(tmp_path, "--workers_list", "0,1")
    assert [row["workers"] for row in found["rows"]] == [0, 1]
    assert len(found["settings"]["notes"]) >= 2
    assert multiprocessing.active_children() == []


def test_more_batches_than_an_epoch_holds_are_said(tmp_path):
    found = results(tmp_path, "--batches", "9")  # 2 of warm-up and 9 are 11 of 3 an epoch
    assert found["rows"][0]["epochs"] == 4
    assert any("9 batches went through 4 epochs" in note for note in found["settings"]["notes"])


def test_batches_steps_and_seconds_decide_how_much_is_measured(tmp_path, monkeypatch):
    seen = {}
    loader_rate, step_rate = data_rates.loader_rate, data_rates.step_rate

    def watched_loader(loader, **options):
        seen.update(options)
        return loader_rate(loader, **options)

    def watched_steps(step, **options):
        seen.update(options)
        return step_rate(step, **options)

    monkeypatch.setattr(data_rates, "loader_rate", watched_loader)
    monkeypatch.setattr(data_rates, "step_rate", watched_steps)
    results(tmp_path, "--batches", "1", "--steps", "2", "--seconds", "7")
    assert (seen["batches"], seen["steps"], seen["seconds"], seen["images"]) == (1, 2, 7.0, 4)


def test_the_step_is_the_recipes(tmp_path, monkeypatch):
    """Accumulation, clipping, the average and the method are those of training."""
    import attnmix
    from attnmix.task import MixTask

    made, updates, autocast = [], [], []
    create, forward = attnmix.create_method, MixTask.forward
    monkeypatch.setattr(
        attnmix, "create_method", lambda name, **options: made.append(name) or create(name, **options)
    )
    monkeypatch.setattr(MixTask, "update_ema", lambda self, step: updates.append(step))
    monkeypatch.setattr(
        MixTask,
        "forward",
        lambda self, *batch: autocast.append(torch.is_autocast_enabled("cpu")) or forward(self, *batch),
    )
    words = [
        "--method",
        "smmix",
        "--accumulation_steps",
        "2",
        "--ema",
        "0.9",
        "--precision",
        "bf16",
        "--steps",
        "4",
    ]
    assert results(tmp_path, *words)["settings"]["precision"] == "bf16"
    assert made == ["smmix"]
    assert updates == [1, 2, 3]  # two steps of warm-up and four
    assert autocast == [True] * 6


def test_the_recipes_threads_hold_while_it_measures(tmp_path, monkeypatch):
    seen = []
    step_rate = data_rates.step_rate

    def watched(step, **options):
        seen.append(torch.get_num_threads())
        return step_rate(step, **options)

    monkeypatch.setattr(data_rates, "step_rate", watched)
    found = results(tmp_path, "--threads", "2")
    assert seen == [2]
    assert found["settings"]["machine"]["threads"] == 2
    assert torch.get_num_threads() == 1


def test_a_folder_of_images(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (40, 32), (40 * number, 90, 10)).save(folder / f"{number}.png")
    words = ["--data", str(tmp_path / "images"), "--model", "vit_tiny_patch16_224", "--batch_size", "4"]
    words += ["--loader.workers", "1", "--device", "cpu"]
    options = "{img_size: 32, embed_dim: 16, depth: 1, num_heads: 2}"
    found = results(tmp_path, *words, "--model_options", options, recipe="folder", tiny=[])
    assert found["settings"]["data"] == str(tmp_path / "images")
    assert found["rows"][0]["workers"] == 1


def test_memory_that_runs_out_is_advice(capsys, monkeypatch):
    def full(step, **options):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(data_rates, "step_rate", full)
    assert main(["bench", "data", "quickstart", *TINY]) == 2
    assert "batch_size 4 does not fit on cpu: lower it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batches", "0"], "batches is 0, but must be 1 or more"),
        (["--steps", "0"], "steps is 0, but must be 1 or more"),
        (["--seconds", "0"], "seconds is 0.0, but must be above 0"),
        (["--workers_list", "0,x"], "want whole numbers with commas between"),
        (["--workers_list", "1,1"], "each must be 0 or more and named once"),
        (["--workers_list=-1"], "each must be 0 or more"),
        (["--method", "smmx"], "smmix"),
    ],
)
def test_wrong_words_are_named(capsys, words, message):
    assert main(["bench", "data", "quickstart", *TINY, *words]) == 2
    assert message in capsys.readouterr().err
