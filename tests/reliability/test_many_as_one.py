"""Many processes train what one does, and two runs of one seed are equal to the bit."""

import json

import pytest

from attnmix.cli import main
from attnmix.training import save_recipe, train
from attnmix.training.checkpoint import load_checkpoint
from tests.training.conftest import tiny_recipe
from tests.training.test_resuming import BUSY, same, untimed

BATCH, IMAGES = 32, 320
EXACT = 2e-5  # float32 sums in another order
DRAWN = 0.06  # boxes of other draws: a few times what two seeds are apart here


def curve(nursery, tmp_path, processes, **changed):
    """Training losses of the epochs, at one global batch size."""
    recipe = tiny_recipe(
        data_options={"train_count": IMAGES}, batch_size=BATCH // processes, epochs=4, lr=1e-3,
        model_options={"drop_path_rate": 0.0}, **changed,
    )  # fmt: skip
    out = tmp_path / f"{processes}-processes-{len(list(tmp_path.iterdir()))}"
    if processes == 1:
        history = train(recipe, out, progress=False).history
        return [entry["train_loss"] for entry in history], [entry["eval_top1"] for entry in history]
    save_recipe(recipe, out.with_suffix(".yaml"))
    ended = nursery.ranks(processes, main, ["train", out.with_suffix(".yaml"), "--out", out])
    assert ended == [0] * processes
    history = json.loads((out / "result.json").read_text())["history"]
    assert load_checkpoint(out / "checkpoint.pt")["num_processes"] == processes
    return [entry["train_loss"] for entry in history], [entry["eval_top1"] for entry in history]


@pytest.mark.slow
def test_one_two_and_four_processes_train_the_same_model(nursery, tmp_path):
    one, two, four = (curve(nursery, tmp_path, processes, method="none") for processes in (1, 2, 4))
    apart = max(abs(a - b) for other in (two, four) for a, b in zip(one[0], other[0], strict=True))
    print(f"without mixing: losses of 1, 2 and 4 processes differ by at most {apart:.1e}")
    assert apart < EXACT
    assert one[1] == two[1] == four[1]


@pytest.mark.slow
def test_with_boxes_of_their_own_processes_train_alike(nursery, tmp_path):
    one, four = (curve(nursery, tmp_path, processes, method="cutmix")[0] for processes in (1, 4))
    seed = curve(nursery, tmp_path, 1, method="cutmix", method_options={"seed": 7})[0]
    apart = max(abs(a - b) for a, b in zip(one, four, strict=True))
    seeds = max(abs(a - b) for a, b in zip(one, seed, strict=True))
    print(f"with CutMix: losses of 1 and 4 processes differ by {apart:.3f} at most, of two seeds by {seeds:.3f}")
    assert 0 < apart < DRAWN


def test_two_runs_of_one_seed_are_equal_to_the_bit(tmp_path):
    first, second = (train(tiny_recipe(**BUSY), tmp_path / name, progress=False) for name in "ab")
    states = [untimed(load_checkpoint(tmp_path / name / "checkpoint.pt")) for name in "ab"]
    assert same(*states)
    assert first.confusion == second.confusion
