import contextlib
import dataclasses
import json
import math

import numpy as np
import pytest
import timm
import torch
from accelerate import Accelerator
from PIL import Image
from torch.utils.data import IterableDataset

import attnmix
from attnmix.data import LabelledImages, create_datasets
from attnmix.training import assembly, loop, setup, train
from attnmix.training.setup import create_model
from tests.data.conftest import truncate


def losses(result):
    return [entry["train_loss"] for entry in result.history]


def test_a_run_leaves_its_folder(tiny, tmp_path, capsys):
    result = train(tiny(), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    checkpoints = {"checkpoint.pt", "checkpoint.previous.pt"}
    assert names == {"recipe.yaml", "metrics.jsonl", "tensorboard", "result.json", "model", *checkpoints}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.history
    assert [line["epoch"] for line in lines] == [1, 2]
    assert set(lines[0]) == {
        "epoch", "lr", "train_loss", "loss_classification", "train_top1",
        "eval_loss", "eval_top1", "eval_top5", "seconds", "images_per_second",
    }  # fmt: skip
    assert lines[0]["loss_classification"] == pytest.approx(lines[0]["train_loss"])
    assert result.top1 == lines[-1]["eval_top1"]
    assert result.top5 == lines[-1]["eval_top5"]
    assert result.loss == lines[-1]["eval_loss"]
    assert len(result.confusion) == len(result.class_names) == 10
    assert sum(map(sum, result.confusion)) == 20
    assert 100 * sum(result.confusion[c][c] for c in range(10)) / 20 == pytest.approx(result.top1)
    assert result.seconds == pytest.approx(sum(line["seconds"] for line in lines))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["top1"] == result.top1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("epoch 1/2  loss ")  # no word on samples, since one process saw all 40
    assert "images/s" in out[1]


def test_what_one_process_saw_is_told_where_it_is_not_all(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(assembly, "expected_samples", lambda *_, **__: {"expected": 60, "rounding": 8})
    train(tiny(epochs=1), tmp_path)
    assert "samples seen in the first epoch: 40 of 60" in capsys.readouterr().out


def test_progress_off_prints_nothing(tiny, tmp_path, capsys):
    train(tiny(epochs=1, schedule={"warmup_epochs": 0}), tmp_path, progress=False)
    assert capsys.readouterr().out == ""


def test_all_warm_up_is_said(tiny, tmp_path, capsys):
    train(tiny(epochs=1), tmp_path)
    assert "note: all 1 epochs are warm-up" in capsys.readouterr().out


def test_tensorboard_holds_the_curves(tiny, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(tiny(), tmp_path, progress=False)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    curve = events.Scalars("train_loss")
    assert [point.step for point in curve] == [1, 2]
    assert [point.value for point in curve] == pytest.approx(losses(result))


def test_same_seed_same_bits_other_seed_other(tiny, tmp_path):
    first, again, other = (
        train(tiny(seed=seed), tmp_path / name, progress=False) for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    )
    assert losses(first) == losses(again)
    assert losses(first) != losses(other)


def test_initial_weights_and_data_order_do_not_depend_on_the_method(tiny, tmp_path, monkeypatch):
    seen = {}

    class Watching(attnmix.MixTask):
        def forward(self, images, labels):
            weights, batches = seen.setdefault(self.method.__class__.__name__, ([], []))
            if not weights:
                weights.extend(p.detach().clone() for p in self.get_eval_model().parameters())
            batches.append(images.clone())
            return super().forward(images, labels)

    monkeypatch.setattr(attnmix, "MixTask", Watching)
    augment = {"no_aug": False, "hflip": 0.5, "color_jitter": 0.4}  # which draw from the global generators
    for method in ("none", "smmix"):
        train(
            tiny(method=method, augment=augment, model_options={"drop_path_rate": 0.5}),
            tmp_path / method,
            progress=False,
        )
    (weights, batches), (other_weights, other_batches) = seen.values()
    assert all(map(torch.equal, weights, other_weights))
    assert len(batches) == len(other_batches) == 10
    assert all(map(torch.equal, batches, other_batches))
    assert not torch.equal(batches[0], batches[5])  # the second epoch has another order


def test_statistics_of_a_method_are_in_the_metrics(tiny, tmp_path):
    options = {"horizontal": 0, "vertical": None, "tau": math.inf, "rho": 0.0, "mixup_prob": 0.0}
    entry = train(tiny(method="tokenmixup", method_options=options), tmp_path).history[-1]
    assert entry["stat_mixed_samples"] > 0
    assert 0 < entry["stat_mixed_tokens"] < 4
    assert entry["stat_difficulty"] > 0
    assert entry["loss_score"] > 0


def test_extra_losses_of_a_method_are_in_the_metrics(tiny, tmp_path):
    result = train(tiny(method="smmix", method_options={"mixup_prob": 0.0}), tmp_path, progress=False)
    parts = [value for name, value in result.history[0].items() if name.startswith("loss_")]
    assert len(parts) == 3
    assert sum(parts) == pytest.approx(result.history[0]["train_loss"], rel=1e-5)


def test_accumulation_gives_the_same_numbers(tiny, tmp_path):
    """Batches of 16, and windows of two batches of 8; 72 = 4 x 16 + 8, so the last window is one batch."""
    options = {
        "data_options": {"train_count": 72},
        "method": "none",
        "model_options": {"drop_path_rate": 0.0},
    }
    options |= {"optimizer": {"opt": "sgd", "momentum": 0.5}, "lr": 0.1}  # Adam magnifies rounding
    whole = train(tiny(batch_size=16, **options), tmp_path / "a", progress=False)
    halves = train(tiny(batch_size=8, accumulation_steps=2, **options), tmp_path / "b", progress=False)
    assert losses(halves) == pytest.approx(losses(whole), rel=1e-5)
    none = train(tiny(batch_size=8, **options), tmp_path / "c", progress=False)
    assert losses(none) != pytest.approx(losses(whole), rel=1e-4)


def test_clip_grad_is_used(tiny, tmp_path, monkeypatch):
    norms = []
    clip = Accelerator.clip_grad_norm_
    monkeypatch.setattr(
        Accelerator, "clip_grad_norm_", lambda self, p, most: norms.append(most) or clip(self, p, most)
    )
    train(tiny(clip_grad=None), tmp_path / "a", progress=False)
    assert norms == []
    train(tiny(clip_grad=0.25), tmp_path / "b", progress=False)
    assert norms == [0.25] * 10


def test_ema_is_evaluated_and_exported(tiny, tmp_path):
    result = train(tiny(ema=0.9), tmp_path, progress=False)
    last = result.history[-1]
    assert result.loss == last["ema_loss"] != last["eval_loss"]
    assert result.top1 == last["ema_top1"]


def test_the_average_of_a_short_run_follows_it(tiny, tmp_path):
    recipe = tiny(ema=0.9999)
    start = create_model(recipe, num_classes=10).state_dict()
    train(recipe, tmp_path, progress=False)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)

    def distance(other):
        return sum((saved["ema"][name] - other[name]).square().sum() for name in start)

    assert distance({name: saved["trainable"][f"model.{name}"] for name in start}) < 0.5 * distance(start)


def test_eval_every(tiny, tmp_path):
    result = train(tiny(epochs=3, eval_every=2), tmp_path, progress=False)
    assert ["eval_top1" in entry for entry in result.history] == [False, True, True]


def test_five_classes_or_fewer_have_no_top5(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "images"
    _write_folder(folder, classes=3)
    result = train(
        dataclasses.replace(tiny(), data=str(folder), data_options={}, eval_split="val"),
        tmp_path / "run",
        progress=False,
    )
    assert result.top5 is None
    assert "eval_top5" not in result.history[0]
    assert result.class_names == ["class0", "class1", "class2"]


def test_an_unreadable_evaluation_image_is_in_no_measurement(tiny, tmp_path):
    _write_folder(tmp_path / "images", classes=2)
    truncate(tmp_path / "images/val/class0/4.jpg")
    recipe = dataclasses.replace(tiny(epochs=1), data=str(tmp_path / "images"), data_options={}, eval_split="val")
    result = train(recipe, tmp_path / "run", progress=False)
    assert [sum(row) for row in result.confusion] == [4, 5]


def _write_folder(folder, *, classes):
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in range(classes):
            (folder / split / f"class{label}").mkdir(parents=True)
            for index in range(5):
                pixels = rng.integers(0, 255, (20 + index, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / f"class{label}" / f"{index}.jpg")


def test_init_starts_from_given_weights(tiny, tmp_path):
    train(tiny(), tmp_path / "first", progress=False)
    weights = str(tmp_path / "first" / "model" / "model.safetensors")
    recipe = tiny(init=weights, epochs=1, lr=1e-12, schedule={"warmup_epochs": 0, "min_lr": 0.0})
    train(recipe, tmp_path / "second", progress=False)
    model = timm.create_model(f"local-dir:{tmp_path / 'first' / 'model'}", pretrained=True)
    again = timm.create_model(f"local-dir:{tmp_path / 'second' / 'model'}", pretrained=True)
    for before, after in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(before, after, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(tiny, tmp_path, monkeypatch, bad):
    calls = []

    class Exploding(attnmix.MixTask):
        def forward(self, images, labels):
            result = super().forward(images, labels)
            calls.append(1)
            return {**result, "loss": result["loss"] * (bad if len(calls) == 8 else 1)}

    monkeypatch.setattr(attnmix, "MixTask", Exploding)
    message = (
        f"the loss is {bad} in epoch 2, step 3 .*: the checkpoint in .* is of an earlier moment; try a lower lr"
    )
    with pytest.raises(FloatingPointError, match=message):
        train(tiny(epochs=3), tmp_path, progress=False)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["epoch"] == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_weights_that_are_not_finite_replace_no_checkpoint(tiny, tmp_path, monkeypatch):
    evaluate = loop.evaluate_accuracy
    calls = []

    def spoiling(model, *args):
        calls.append(1)
        if len(calls) == 2:
            return {**evaluate(model, *args), "loss": math.nan}
        return evaluate(model, *args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate_accuracy", spoiling)
        with pytest.raises(FloatingPointError, match="the evaluated loss is nan after epoch 2: the checkpoint in"):
            train(tiny(epochs=3), tmp_path, progress=False)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["epoch"] == 1

    class Spoiled(attnmix.MixTask):
        def update_ema(self, step=None):
            if step == 10:
                with torch.no_grad():
                    self.view.model.head.bias[0] = math.inf

    monkeypatch.setattr(attnmix, "MixTask", Spoiled)
    with pytest.raises(FloatingPointError, match=r"model.head.bias is not finite after epoch 2: the checkpoint"):
        train(tiny(epochs=3, ema=0.5), tmp_path / "b", progress=False)
    assert torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)["epoch"] == 1
    assert len((tmp_path / "b" / "metrics.jsonl").read_text().splitlines()) == 1


def test_out_of_memory_says_what_to_do(tiny, tmp_path, monkeypatch):
    class Large(attnmix.MixTask):
        def forward(self, images, labels):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")

    monkeypatch.setattr(attnmix, "MixTask", Large)
    message = (
        "batch_size 8 does not fit on cpu: batch_size 4 and accumulation_steps 2 train the same; so does grad_ch"
    )
    with pytest.raises(MemoryError, match=message):
        train(tiny(), tmp_path, progress=False)


class Stream(LabelledImages, IterableDataset):
    """Says that it has 40 items, and gives another number."""

    class_names = [str(digit) for digit in range(10)]  # noqa: RUF012

    def __init__(self, data, given):
        self.data, self.given = data, given

    def __len__(self):
        return 40

    def __iter__(self):
        yield from (self.data[index] for index in range(self.given))


@pytest.mark.parametrize("given", [40, 56, 24, 28])
def test_streams_that_give_more_or_fewer_batches_than_they_say(tiny, tmp_path, monkeypatch, given):
    """Said: 5 batches in windows of 2, 2 and 1. An epoch ends with an update, never beyond what was said."""
    updates = []

    def datasets(name, **options):
        train_data, eval_data = create_datasets(name, **{**options, "data_options": {"train_count": 56}})
        return Stream(train_data, given), eval_data

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            updates.append(torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm())
            return super().step(closure)

    def optimizer(module, recipe):
        return Counting(module.parameters(), lr=recipe.lr)

    monkeypatch.setattr(setup, "create_datasets", datasets)
    monkeypatch.setattr(assembly, "create_optimizer", optimizer)
    result = train(tiny(accumulation_steps=2, method="none", clip_grad=None), tmp_path, progress=False)
    batches = min(5, given // 8 + (given % 8 > 0))
    assert len(updates) == 2 * math.ceil(batches / 2)
    assert all(norm > 0 for norm in updates)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["updates"] == 6  # the schedule keeps to the epochs
    assert len(result.history) == 2


def test_a_window_cut_short_is_averaged_over_what_came(tiny, tmp_path, monkeypatch):
    """Three batches of a stream that said four, in windows of two: the last counts as a window of one."""

    def run(said, folder):
        def datasets(name, **options):
            train_data, eval_data = create_datasets(name, **options)
            stream = Stream(train_data, 24)
            stream.__class__ = type("Said", (Stream,), {"__len__": lambda self: said})
            return stream, eval_data

        monkeypatch.setattr(setup, "create_datasets", datasets)
        options = {"optimizer": {"opt": "sgd"}, "schedule": {"sched": "constant", "warmup_epochs": 0}}
        recipe = tiny(accumulation_steps=2, method="none", model_options={"drop_path_rate": 0.0}, **options)
        return losses(train(recipe, folder, progress=False))

    assert run(32, tmp_path / "a") == pytest.approx(run(24, tmp_path / "b"), rel=1e-6)


def test_a_stream_without_a_batch(tiny, tmp_path, monkeypatch):
    def datasets(name, **options):
        train_data, eval_data = create_datasets(name, **options)
        return Stream(train_data, 0), eval_data

    monkeypatch.setattr(setup, "create_datasets", datasets)
    with pytest.raises(ValueError, match="the training data digits-in-scenes gave not one batch in epoch 1"):
        train(tiny(), tmp_path, progress=False)


def test_streams_are_told_the_batch_size(tiny, tmp_path, monkeypatch):
    seen = {}

    def datasets(name, **options):
        seen.update(options)
        return create_datasets(name, **options)

    monkeypatch.setattr(setup, "create_datasets", datasets)
    train(tiny(epochs=1), tmp_path, progress=False)
    assert seen["batch_size"] == 8


def test_the_rate_before_layer_decay_is_told(tiny, tmp_path):
    plain = train(tiny(), tmp_path / "a", progress=False)
    decayed = train(tiny(optimizer={"layer_decay": 0.5}), tmp_path / "b", progress=False)
    assert [e["lr"] for e in decayed.history] == pytest.approx([e["lr"] for e in plain.history])
    assert losses(decayed) != pytest.approx(losses(plain), rel=1e-6)


def test_slow_steps_show_soon(tiny, tmp_path, monkeypatch):
    shown = []

    @contextlib.contextmanager
    def bar(console, **options):
        yield lambda epoch, steps, **numbers: shown.append(steps)

    monkeypatch.setattr(loop, "progress_bar", bar)
    train(tiny(epochs=1), tmp_path / "a", progress=False)
    assert shown == [1, 4]  # until a step is timed, each is looked at
    shown.clear()
    monkeypatch.setattr(loop, "CHECK_SECONDS", 0.0)
    train(tiny(epochs=1), tmp_path / "b", progress=False)
    assert shown == [1] * 5


@pytest.mark.slow
def test_a_compiled_run(tiny, tmp_path):
    """Trained, evaluated, exported and resumed with torch.compile: the numbers of the plain run."""
    options = {"method": "smmix", "epochs": 1, "ema": 0.9}
    plain = train(tiny(**options), tmp_path / "plain", progress=False)
    compiled = train(tiny(**options, compile=True), tmp_path / "compiled", progress=False)
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-3)
    model = timm.create_model(f"local-dir:{tmp_path / 'compiled' / 'model'}", pretrained=True)
    assert not any(name.startswith("_orig_mod") for name in model.state_dict())
    again = train(
        tiny(**{**options, "epochs": 2}, compile=True), tmp_path / "compiled", resume=True, progress=False
    )
    assert len(again.history) == 2


def test_threads_precision_and_compile_are_used(tiny, tmp_path, monkeypatch):
    seen = {}

    class Watching(attnmix.MixTask):
        def compile(self, **options):
            seen["compiled"] = True

        def forward(self, images, labels):
            seen["autocast"] = torch.is_autocast_enabled("cpu")
            return super().forward(images, labels)

    monkeypatch.setattr(attnmix, "MixTask", Watching)
    train(tiny(epochs=1), tmp_path / "a", progress=False)
    assert seen == {"autocast": False}
    train(tiny(epochs=1, precision="bf16", compile=True, threads=2), tmp_path / "b", progress=False)
    assert seen == {"autocast": True, "compiled": True}
    assert torch.get_num_threads() == 2


def test_bf16_changes_the_numbers_a_little(tiny, tmp_path):
    full = train(tiny(), tmp_path / "a", progress=False)
    half = train(tiny(precision="bf16"), tmp_path / "b", progress=False)
    assert losses(half) != losses(full)
    assert losses(half) == pytest.approx(losses(full), rel=0.05)


def test_unknown_method_and_option(tiny, tmp_path):
    with pytest.raises(ValueError, match="smmix"):
        train(tiny(method="smmx"), tmp_path)
    with pytest.raises(ValueError, match="smoothing"):
        train(tiny(method_options={"smoothin": 0.1}), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_the_loop_names_no_method():
    source = loop.__spec__.loader.get_source(loop.__name__)
    for name in attnmix.METHODS:
        assert f'"{name}"' not in source


def test_grad_checkpointing_computes_twice_and_changes_nothing(tiny, tmp_path, monkeypatch):
    def run(on):
        calls = []

        class Counted(attnmix.MixTask):
            def __init__(self, model, method):
                super().__init__(model, method)
                model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))

        with monkeypatch.context() as patch:
            patch.setattr(attnmix, "MixTask", Counted)
            result = train(tiny(epochs=1, grad_checkpointing=on), tmp_path / str(on), progress=False)
        return sum(calls), result

    (plain, before), (twice, after) = run(False), run(True)
    assert twice > plain
    assert after.loss == pytest.approx(before.loss, abs=1e-6)


def test_a_model_without_grad_checkpointing_is_named(tiny):
    recipe = dataclasses.replace(tiny(), model="cspresnet50", model_options={}, grad_checkpointing=True)
    with pytest.raises(ValueError, match="grad_checkpointing is on, but cspresnet50 offers none: set it to false"):
        assembly.create_model(recipe, num_classes=10)


def test_the_end_of_another_process_is_told(tiny, tmp_path, monkeypatch):
    def lost(run, *_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")

    monkeypatch.setattr(loop._Run, "train_epoch", lost)
    monkeypatch.setattr(type(loop.create_accelerator(tiny(), tmp_path)), "num_processes", 2)
    with pytest.raises(
        ConnectionError, match="another process of this run has ended, so process 0 ends too; no check"
    ):
        train(tiny(), tmp_path / "run", progress=False)
