"""Training on real streams, by the command that a person types: webdataset shards and a Hugging Face data set."""

import json
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import datasets
import pytest
import torch
from accelerate.utils import gather_object

from attnmix.cli import main
from attnmix.training import load_recipe, save_recipe
from attnmix.training.loader import create_loaders, epoch_batches, set_epoch
from attnmix.training.setup import create_accelerator, create_data, model_inputs
from tests.stream_sets import picture, write_info, write_parquet, write_shards
from tests.training.test_resuming import signalled_at

MODEL_OPTIONS = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
TRAIN, EVAL = [8, 8, 8, 8], [5, 2, 6]  # samples of each shard; numbered from 0, and from 100


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)  # else 5 s at the end of each epoch


@pytest.fixture(params=["wds", "hfids"])
def words(request, tmp_path):
    """What is typed after `attnmix train quickstart` to train on the stream."""
    folder = tmp_path / "set"
    if request.param == "wds":
        write_shards(folder, "train", TRAIN)
        write_shards(folder, "validation", EVAL, first=100)
        write_info(folder, train=TRAIN, validation=EVAL)
        data, options = "wds/x", f"root: {folder}, num_classes: 10"
    else:
        write_parquet(folder, "train", TRAIN)
        write_parquet(folder, "validation", EVAL, first=100)
        data, options = f"hfids/{folder}", f"root: {tmp_path}/cache, num_classes: 10"
        options += f", train_num_samples: {sum(TRAIN)}, eval_num_samples: {sum(EVAL)}"
    return [
        *("--method=cutmix", f"--data={data}", f"--data_options={{{options}}}", "--eval_split=validation"),
        *(
            f"--model_options={json.dumps(MODEL_OPTIONS)}",
            "--batch_size=4",
            "--epochs=2",
            "--device=cpu",
            "--threads=1",
        ),
        *("--schedule.warmup_epochs=1", f"--out={tmp_path / 'run'}"),
    ]


def evaluated(folder):
    """Images evaluated, by class."""
    return [sum(row) for row in json.loads((folder / "result.json").read_text())["confusion"]]


LABELS = [2, 2, 2, 1, 1, 1, 1, 1, 1, 1]  # of the 13 samples from 100 on


@pytest.mark.parametrize("workers", [0, 2])
def test_one_process_trains_on_a_stream(words, tmp_path, workers):
    assert main(["train", "quickstart", *words, f"--loader.workers={workers}"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert evaluated(tmp_path / "run") == LABELS


def test_with_other_workers_the_epoch_begins_anew(words, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        signalled_at(patch, 3)
        assert main(["train", "quickstart", *words]) == 143
    assert main(["train", "quickstart", *words, "--loader.workers=2", "--resume"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "loader.workers was 0 and is now 2, which changes the order of a stream" in told
    assert "epoch 1 begins anew" in told


@pytest.mark.slow
def test_two_processes_train_on_a_stream(nursery, words, tmp_path):
    assert nursery.ranks(2, main, ["train", "quickstart", *words, "--loader.workers=2"]) == [0, 0]
    assert evaluated(tmp_path / "run") == LABELS  # each once, though the shards do not divide by 2


def test_too_many_workers_end_the_command_at_once(words, capsys, tmp_path):
    assert main(["train", "quickstart", *words, "--loader.workers=5"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnmix: error: ")
    assert "4 shards" in error
    assert "lower loader.workers" in error
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_what_a_worker_finds_wrong_is_told_on_one_line(tmp_path, words, capsys):
    damaged = {number: b"" for number in range(0, 16, 3)}
    folder = tmp_path / "set"
    write = write_shards if (folder / "_info.json").exists() else write_parquet
    write(folder, "train", TRAIN, damaged=damaged)
    assert main(["train", "quickstart", *words, "--loader.workers=2"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    told = (
        r"attnmix: error: 4 samples of \S+ train cannot be read, more than the 3 allowed; repair or remove them: "
    )
    assert re.fullmatch(told + r".* \(the last: it is empty, damaged or no image\)", last)


def walk(recipe, out):
    """Of every process: the numbers in two epochs of training and in an evaluation; holds resuming to be exact."""
    accelerator = create_accelerator(recipe, out)
    inputs = model_inputs(recipe)

    def batches(epoch, first=0, **augment):
        changed = replace(recipe, augment=replace(recipe.augment, **augment))
        train_data, eval_data = create_data(changed)
        train_loader, eval_loader = create_loaders(train_data, eval_data, changed, accelerator)
        set_epoch(train_loader, epoch)
        return list(epoch_batches(train_loader, len(train_loader), first=first)), eval_loader

    found = {"epochs": []}
    for epoch in (0, 1):
        epoch_found, eval_loader = batches(epoch)
        found["epochs"].append([numbers(images, inputs) for _, (images, _), _ in epoch_found])
    found["evaluated"] = []
    for images, labels in eval_loader:
        images, labels = accelerator.gather_for_metrics((images, labels))
        found["evaluated"] += numbers(images, inputs)
        assert [number % 10 for number in numbers(images, inputs)] == labels.tolist()
    whole, _ = batches(1, no_aug=False, re_prob=0.5)
    rest, _ = batches(1, first=2, no_aug=False, re_prob=0.5)
    found["resumed"] = [index for index, _, _ in rest]
    for (_, got, _), (_, wanted, _) in zip(rest, whole[2:], strict=True):
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])
    return gather_object([found])


def numbers(images, inputs):
    """Numbers of the pictures in a batch, from the normalised images."""
    red = images[:, 0].mean(dim=(1, 2)) * inputs["std"][0] + inputs["mean"][0]
    return (red * 255).round().int().tolist()


def walk_all(paths):
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    return [walk(load_recipe(path), Path(path).parent) for path in paths]


def recipes(folder):
    """A recipe for each kind of data and number of workers, by a name."""
    for name in ("wds", "hfids", "folder"):
        (folder / name).mkdir(parents=True)
    write_shards(folder / "wds", "train", TRAIN)
    write_shards(folder / "wds", "validation", EVAL, first=100)
    write_info(folder / "wds", train=TRAIN, validation=EVAL)
    write_parquet(folder / "hfids", "train", TRAIN)
    write_parquet(folder / "hfids", "validation", EVAL, first=100)
    for split, all_numbers in (("train", range(sum(TRAIN))), ("validation", range(100, 100 + sum(EVAL)))):
        for number in all_numbers:
            (folder / f"folder/{split}/{number % 10}").mkdir(parents=True, exist_ok=True)
            (folder / f"folder/{split}/{number % 10}/{number}.png").write_bytes(picture(number))
    counts = {"num_classes": 10, "train_num_samples": sum(TRAIN), "eval_num_samples": sum(EVAL)}
    recipe = load_recipe("quickstart", model_options=MODEL_OPTIONS, batch_size=4, device="cpu", threads=1)
    recipe = replace(recipe, eval_split="validation")
    for workers in (0, 2):
        here = replace(recipe, loader=replace(recipe.loader, workers=workers))
        root = {"root": str(folder / "wds")}
        yield f"wds-{workers}", replace(here, data="wds/x", data_options={**counts, **root})
        root = {"root": str(folder / "cache")}
        yield f"hfids-{workers}", replace(here, data=f"hfids/{folder / 'hfids'}", data_options={**counts, **root})
        yield f"folder-{workers}", replace(here, data=str(folder / "folder"), data_options={})
        if workers == 2:
            repeated = replace(here, augment=replace(here.augment, no_aug=False), aug_repeats=3)
            yield "repeats-2", replace(repeated, data=str(folder / "folder"), data_options={})


@pytest.mark.slow
def test_two_processes_read_shares_of_their_own(nursery, tmp_path):
    paths = {}
    for name, recipe in recipes(tmp_path):
        paths[name] = tmp_path / f"{name}.yaml"
        save_recipe(recipe, paths[name])
    found = nursery.ranks(2, walk_all, list(paths.values()))
    assert found[0] == found[1]  # gathered
    for name, ranks in zip(paths, found[0], strict=True):
        assert len(ranks) == 2
        orders = []
        for epoch in (0, 1):
            shares = [list(chain(*rank["epochs"][epoch])) for rank in ranks]
            assert [len(share) for share in shares] == [16, 16], name
            orders.append(shares)
            if name != "repeats-2":
                assert sorted(chain(*shares)) == list(range(32)), name  # each once: no overlap, and none missing
        assert orders[0] != orders[1], name
        assert ranks[0]["resumed"] == ranks[1]["resumed"] == [2, 3], name
        for rank in ranks:
            assert sorted(rank["evaluated"]) == list(range(100, 113)), name
