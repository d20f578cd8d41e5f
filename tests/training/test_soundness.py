import itertools
import math

import pytest
import torch

import attnmix
from attnmix.training import loop, train
from attnmix.training.soundness import first_unsound, keep_batch, unsound_weight


def spoilt_at(monkeypatch, *steps, value=math.nan):
    """Make the loss of these training steps, from 1, not finite; the list grows with every step's images."""
    seen = []

    class Spoilt(attnmix.MixTask):
        def forward(self, images, labels):
            seen.append((images.clone(), labels.clone()))
            result = super().forward(images, labels)
            return {**result, "loss": result["loss"] * (value if len(seen) in steps else 1)}

    monkeypatch.setattr(attnmix, "MixTask", Spoilt)
    return seen


@pytest.mark.parametrize("augment", [{}, {"no_aug": False, "hflip": 0.5, "re_prob": 0.5}])
def test_the_batch_that_did_it_is_kept(tiny, tmp_path, monkeypatch, augment):
    seen = spoilt_at(monkeypatch, 8)
    with pytest.raises(
        FloatingPointError, match="in epoch 2, step 3 .its batch, before mixing, is kept in .*-step3-"
    ):
        train(tiny(epochs=3, augment=augment), tmp_path, progress=False)
    kept = torch.load(tmp_path / "not-finite-epoch2-step3-process0.pt", weights_only=True)
    assert kept["images"].equal(seen[7][0])
    assert kept["labels"].equal(seen[7][1])
    assert (kept["epoch"], kept["step"]) == (2, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_skipping_goes_on_without_that_update(tiny, tmp_path, monkeypatch, capsys, value):
    with monkeypatch.context() as patch:
        seen = spoilt_at(patch, 3, 4, value=value)
        result = train(tiny(nonfinite="skip"), tmp_path / "skipped")
        assert len(seen) == 10
    told = " ".join(capsys.readouterr().out.split())
    assert "a gradient is not finite in epoch 1, step 3: update skipped: its batch, before mixing, is kept" in told
    assert "in epoch 1, step 4: update skipped" in told
    assert [entry.get("skipped_updates") for entry in result.history] == [2, None]
    assert all(math.isfinite(entry["train_loss"]) for entry in result.history)
    assert len(list((tmp_path / "skipped").glob("not-finite-*.pt"))) == 1
    # what is left out moves nothing: a run without these two batches' steps has the same weights
    whole = train(tiny(nonfinite="skip"), tmp_path / "whole", progress=False)
    assert whole.history[0]["train_loss"] != result.history[0]["train_loss"]
    assert "skipped_updates" not in whole.history[0]


def test_of_a_window_the_batch_that_did_it_is_kept(tiny, tmp_path, monkeypatch, capsys):
    seen = spoilt_at(monkeypatch, 3)
    result = train(tiny(nonfinite="skip", epochs=1, accumulation_steps=2), tmp_path)
    kept = torch.load(tmp_path / "not-finite-epoch1-step3-process0.pt", weights_only=True)
    assert kept["images"].equal(seen[2][0])
    assert result.history[0]["skipped_updates"] == 1
    assert "samples" not in capsys.readouterr().out  # none is missing


def test_a_skipped_update_leaves_the_weights(tiny, tmp_path, monkeypatch):
    weights = []

    class Watched(attnmix.MixTask):
        def forward(self, images, labels):
            weights.append(self.view.model.head.weight.detach().clone())
            result = super().forward(images, labels)
            return {**result, "loss": result["loss"] * (math.nan if len(weights) == 3 else 1)}

    monkeypatch.setattr(attnmix, "MixTask", Watched)
    train(tiny(epochs=1, nonfinite="skip", schedule={"warmup_epochs": 0}), tmp_path, progress=False)
    same = [a.equal(b) for a, b in itertools.pairwise(weights)]
    assert same == [False, False, True, False]


def test_too_many_on_end_stop_the_run(tiny, tmp_path, monkeypatch):
    spoilt_at(monkeypatch, *range(13, 100))
    with pytest.raises(
        FloatingPointError, match="in epoch 2, step 2, the 10th update skipped on end: the checkpoint"
    ):
        train(tiny(batch_size=2, nonfinite="skip"), tmp_path, progress=False)


def test_an_epoch_of_skipped_updates_alone(tiny, tmp_path, monkeypatch):
    spoilt_at(monkeypatch, *range(6, 11))
    with pytest.raises(FloatingPointError, match="not one loss of epoch 2 is finite"):
        train(tiny(nonfinite="skip"), tmp_path, progress=False)


def test_spoilt_weights_become_no_checkpoint_in_the_middle_of_an_epoch(tiny, tmp_path, monkeypatch):
    class Spoilt(attnmix.MixTask):
        def forward(self, *args, **kwargs):
            result = super().forward(*args, **kwargs)
            with torch.no_grad():
                self.view.model.head.bias[0] = math.inf  # after the forward: the loss is finite still
            return result

    monkeypatch.setattr(attnmix, "MixTask", Spoilt)
    monkeypatch.setattr(loop, "CHECK_EVERY", 1)
    with pytest.raises(
        FloatingPointError, match="model.head.bias is not finite in epoch 1, step 1: no checkpoint yet"
    ):
        train(tiny(checkpoint_minutes=0.0), tmp_path, progress=False)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_which_is_the_first():
    assert first_unsound([torch.tensor(1.0), torch.tensor(math.inf), torch.tensor(math.nan)]) == 1
    assert first_unsound([torch.tensor(1.0)]) is None
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert unsound_weight(model) is None
    model[1].bias.data[0] = math.nan
    assert unsound_weight(model) == "1.bias"


def test_a_full_disk_hides_no_diverged_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    told = keep_batch(torch.ones(1), torch.ones(1), tmp_path, epoch=1, step=1, process=0)
    assert "its batch could not be kept: [Errno 28] No space left" in told
