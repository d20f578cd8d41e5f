import os
import random
import signal

import numpy as np
import pytest
import torch

import attnmix
from attnmix.training import loop, train
from attnmix.training.checkpoint import has_checkpoint, load_checkpoint, previous_of, save_checkpoint
from attnmix.training.stopping import Stopped


def same(first, second):
    """Whether two nests of dictionaries, lists and tensors are equal to the bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


class Stop(Exception):
    pass


def interrupt_after(monkeypatch, epochs):
    """Make the run end as by Ctrl-C right after the checkpoint of an epoch."""
    from attnmix.training import loop

    save = loop.save_run

    def save_and_stop(path, task, optimizer, position, **options):
        save(path, task, optimizer, position, **options)
        if position.epoch == epochs:
            raise Stop

    monkeypatch.setattr(loop, "save_run", save_and_stop)


def untimed(state):
    times = ("seconds", "images_per_second")
    history = [{k: v for k, v in entry.items() if k not in times} for entry in state["history"]]
    return {**state, "history": history}


@pytest.mark.parametrize(
    ("method", "repeats", "cooldown"), [("none", 1, 0), ("smmix", 1, 0), ("cutmix", 3, 1), ("cutmix", 2, 3)]
)
def test_resuming_is_exact(tiny, tmp_path, monkeypatch, method, repeats, cooldown):
    """Four epochs in one go, and two and two: weights, average, optimizer, draws, metrics, to the bit."""
    recipe = tiny(
        method=method,
        epochs=4,
        aug_repeats=repeats,
        schedule={"cooldown_epochs": cooldown},
        ema=0.9,
        accumulation_steps=2,
        augment={"no_aug": False, "hflip": 0.5, "re_prob": 0.5},
        model_options={"drop_path_rate": 0.3, "drop_rate": 0.1},
    )
    straight = train(recipe, tmp_path / "straight", progress=False)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Stop):
            train(recipe, tmp_path / "resumed", progress=False)
    torch.rand(3), random.random(), np.random.rand()  # another process's generators stand elsewhere
    resumed = train(recipe, tmp_path / "resumed", resume=True, progress=False)

    first, second = (load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("straight", "resumed"))
    assert same(untimed(first), untimed(second))
    assert resumed.confusion == straight.confusion
    assert len((tmp_path / "resumed" / "metrics.jsonl").read_text().splitlines()) == 4
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("straight", "resumed")]
    assert weights[0] == weights[1]


def test_resuming_a_finished_run_measures_it_again(tiny, tmp_path):
    first = train(tiny(), tmp_path, progress=False)
    again = train(tiny(), tmp_path, resume=True, progress=False)
    assert again.confusion == first.confusion
    assert again.history == first.history


def test_more_epochs_extend_a_run(tiny, tmp_path):
    train(tiny(epochs=2), tmp_path, progress=False)
    longer = train(tiny(epochs=4), tmp_path, resume=True, progress=False)
    assert [entry["epoch"] for entry in longer.history] == [1, 2, 3, 4]
    assert longer.history[2]["lr"] > longer.history[1]["lr"]  # by the longer cosine


def test_checkpoint_every(tiny, tmp_path, monkeypatch):
    from attnmix.training import loop

    epochs = []
    monkeypatch.setattr(
        loop, "save_run", lambda path, task, optimizer, position, **_: epochs.append(position.epoch)
    )
    train(tiny(epochs=5, checkpoint_every=2), tmp_path, progress=False)
    assert epochs == [2, 4, 5]


def test_nothing_to_resume(tiny, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"nothing to resume: there is no checkpoint at .*start without --resume"
    ):
        train(tiny(), tmp_path, resume=True)


def test_a_folder_that_holds_a_run(tiny, tmp_path):
    train(tiny(epochs=1), tmp_path, progress=False)
    assert has_checkpoint(tmp_path)
    with pytest.raises(FileExistsError, match=r"already holds a run: add --resume .* or choose another --out"):
        train(tiny(epochs=1), tmp_path)


def test_a_changed_recipe_is_refused(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    with pytest.raises(
        ValueError, match=r"cannot resume .* another recipe: lr was 0.002 and is now 0.1; set it back.*--force"
    ):
        train(tiny(lr=0.1), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"optimizer.weight_decay was 0.05 and is now 0.1"):
        train(tiny(optimizer={"weight_decay": 0.1}), tmp_path, resume=True)
    train(tiny(threads=None, eval_every=2, loader={"pin": False}), tmp_path, resume=True, progress=False)


def test_a_key_newer_than_the_checkpoint_had_its_default(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    assert saved["recipe"].pop("aug_repeats") == 1
    save_checkpoint(tmp_path / "checkpoint.pt", saved)
    train(tiny(), tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match=r"aug_repeats was 1 and is now 2"):
        train(tiny(aug_repeats=2, augment={"no_aug": False}), tmp_path, resume=True)


def test_fewer_epochs_than_done_are_refused(tiny, tmp_path):
    train(tiny(epochs=2), tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"the run in .* already has 2 epochs; epochs is 1"):
        train(tiny(epochs=1), tmp_path, resume=True)


def test_fewer_epochs_than_begun_are_refused(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        signalled_at(patch, 8)
        with pytest.raises(Stopped):
            train(tiny(), tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"already has 1 epochs and has begun another; epochs is 1"):
        train(tiny(epochs=1), tmp_path, resume=True)


def test_another_number_of_processes_is_refused(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    assert saved["num_processes"] == 1
    save_checkpoint(tmp_path / "checkpoint.pt", {**saved, "num_processes": 8})
    with pytest.raises(
        ValueError, match=r"cannot resume .* with 1 processes: it was made with 8, .* start as many"
    ):
        train(tiny(), tmp_path, resume=True)


def test_the_processes_give_no_weights_to_gather(tiny, tmp_path):
    train(tiny(method="smmix", method_options={"token_head": True}), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    assert [set(own) for own in saved["per_process"]] == [{"rng", "generator"}]
    assert any(name.startswith("method.") for name in saved["trainable"])


BUSY = {
    "method": "smmix",
    "epochs": 3,
    "ema": 0.9,
    "accumulation_steps": 2,
    "augment": {"no_aug": False, "hflip": 0.5, "re_prob": 0.5},
    "model_options": {"drop_path_rate": 0.3, "drop_rate": 0.1},
    "method_options": {"token_head": True, "mixup_prob": 0.5},
}


def signalled_at(monkeypatch, step, number=signal.SIGTERM):
    """Make the process get a signal in its n-th training step, from 1."""
    steps = []

    class Signalled(attnmix.MixTask):
        def forward(self, *args, **kwargs):
            steps.append(1)
            if len(steps) == step:
                os.kill(os.getpid(), number)
            return super().forward(*args, **kwargs)

    monkeypatch.setattr(attnmix, "MixTask", Signalled)
    return steps


@pytest.mark.parametrize("step", [1, 6, 7, 10, 15])  # 5 batches an epoch, in windows of 2
def test_stopping_anywhere_and_going_on_is_exact(tiny, tmp_path, monkeypatch, step):
    recipe = tiny(**BUSY)
    straight = train(recipe, tmp_path / "straight", progress=False)
    with monkeypatch.context() as patch:
        steps = signalled_at(patch, step)
        with pytest.raises(Stopped) as stopped:
            train(recipe, tmp_path / "resumed", progress=False)
        assert stopped.value.signal == signal.SIGTERM
        assert len(steps) - step <= 1  # the window is finished
    saved = load_checkpoint(tmp_path / "resumed" / "checkpoint.pt")
    assert 5 * saved["epoch"] + saved["batch"] == len(steps)
    torch.rand(3), random.random(), np.random.rand()  # another process's generators stand elsewhere
    resumed = train(recipe, tmp_path / "resumed", resume=True, progress=False)
    first, second = (load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("straight", "resumed"))
    assert same(untimed(first), untimed(second))
    assert resumed.confusion == straight.confusion


def test_a_signal_during_evaluation_is_heard_and_the_epoch_goes_on_there(tiny, tmp_path, monkeypatch):
    recipe = tiny(**BUSY)
    train(recipe, tmp_path / "straight", progress=False)
    evaluate, calls = loop.evaluate_accuracy, []

    def signalled(model, loader, *args):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return evaluate(model, loader, *args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate_accuracy", signalled)
        with pytest.raises(Stopped, match="SIGUSR1"):
            train(recipe, tmp_path / "resumed", progress=False)
    saved = load_checkpoint(tmp_path / "resumed" / "checkpoint.pt")
    assert (saved["epoch"], saved["batch"]) == (1, 5)
    with monkeypatch.context() as patch:
        steps = signalled_at(patch, 0)
        train(recipe, tmp_path / "resumed", resume=True, progress=False)
        assert len(steps) == 5  # of the last epoch alone
    first, second = (load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("straight", "resumed"))
    assert same(untimed(first), untimed(second))


def test_a_signal_in_the_last_evaluation_is_heard_too(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        signalled_at(patch, 10)
        with pytest.raises(Stopped):
            train(tiny(), tmp_path, progress=False)
    assert not (tmp_path / "result.json").exists()
    train(tiny(), tmp_path, resume=True, progress=False)
    assert (tmp_path / "result.json").is_file()


def test_long_epochs_are_saved_by_the_minute(tiny, tmp_path, monkeypatch):
    def positions(minutes):
        found, save = [], loop.save_run

        def noted(path, task, optimizer, position, **options):
            found.append((position.epoch, position.batch))
            save(path, task, optimizer, position, **options)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "save_run", noted)
            patch.setattr(loop, "CHECK_EVERY", 2)
            train(tiny(checkpoint_minutes=minutes, epochs=1), tmp_path / str(minutes), progress=False)
        return found

    assert positions(0.0) == [(0, 1), (0, 3), (0, 5), (1, 0)]
    assert positions(None) == positions(10.0) == [(1, 0)]


def test_an_unreadable_checkpoint_gives_way_to_the_one_before(tiny, tmp_path, capsys):
    train(tiny(epochs=3), tmp_path, progress=False)
    path = tmp_path / "checkpoint.pt"
    assert load_checkpoint(previous_of(path))["epoch"] == 2
    path.write_bytes(path.read_bytes()[:5000])
    train(tiny(epochs=3), tmp_path, resume=True)
    assert "going on from the one before" in " ".join(capsys.readouterr().out.split())
    assert load_checkpoint(path)["epoch"] == 3
    # the damaged one has not become the one before
    assert load_checkpoint(previous_of(path))["epoch"] == 2
    assert (tmp_path / "checkpoint.damaged.pt").stat().st_size == 5000


def test_force_goes_on_under_another_recipe(tiny, tmp_path, capsys):
    train(tiny(), tmp_path, progress=False)
    result = train(tiny(epochs=3, lr=1e-4), tmp_path, resume=True, force=True)
    assert "lr was 0.002 and is now 0.0001" in capsys.readouterr().out
    assert result.history[2]["lr"] < 1e-4 < result.history[0]["lr"]


def test_with_other_batches_an_epoch_begins_anew(tiny, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        signalled_at(patch, 8)
        with pytest.raises(Stopped):
            train(tiny(), tmp_path, progress=False)
    result = train(tiny(batch_size=4), tmp_path, resume=True, force=True)
    told = capsys.readouterr().out
    assert "batch_size was 8 and is now 4" in told
    assert "epoch 2 begins anew" in told
    assert [entry["epoch"] for entry in result.history] == [1, 2]
    assert load_checkpoint(tmp_path / "checkpoint.pt")["updates"] == 20


@pytest.mark.parametrize("batch_size", [4, 20])
def test_with_other_batches_between_epochs_the_schedule_goes_on_by_epochs(tiny, tmp_path, batch_size):
    options = {"epochs": 4, "lr": 1e-3, "schedule": {"warmup_epochs": 0}}
    wanted = train(tiny(**options, batch_size=batch_size), tmp_path / "whole", progress=False).history
    train(tiny(**{**options, "epochs": 2}), tmp_path / "run", progress=False)
    found = train(
        tiny(**options, batch_size=batch_size), tmp_path / "run", resume=True, force=True, progress=False
    ).history
    assert [entry["lr"] for entry in found[2:]] == pytest.approx([entry["lr"] for entry in wanted[2:]])


def test_forced_options_of_the_optimizer_are_taken(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    forced = tiny(epochs=3, optimizer={"weight_decay": 0.3, "betas": [0.5, 0.6]})
    train(forced, tmp_path, resume=True, force=True, progress=False)
    groups = load_checkpoint(tmp_path / "checkpoint.pt")["optimizer"]["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.0, 0.3}
    assert all(list(group["betas"]) == [0.5, 0.6] for group in groups)


def test_weights_of_another_model_are_refused(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    with pytest.raises(
        ValueError, match="the checkpoint is not of this model, method and optimizer: .*size mismatch"
    ):
        train(tiny(model_options={"embed_dim": 32}), tmp_path, resume=True, force=True)
