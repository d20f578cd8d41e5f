"""SIGKILL at any moment: the run goes on from its last whole checkpoint, and ends as if nothing had been."""

import random
import signal

import pytest

from attnmix.training import save_recipe
from attnmix.training.checkpoint import has_checkpoint, load_checkpoint, load_latest
from tests.reliability.children import train_until
from tests.training.conftest import tiny_recipe
from tests.training.test_resuming import BUSY, same, untimed

KILLS = 50
CRASHES = [(name, call) for name in ("save", "fsync", "link", "replace") for call in (1, 2, 5)]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("kills") / "recipe.yaml"
    save_recipe(tiny_recipe(**BUSY, checkpoint_minutes=0.0), path)
    return path


@pytest.fixture(scope="module")
def whole(nursery, recipe):
    """The run that nothing happens to: its folder, and how long it takes."""
    ended = nursery.run(train_until, recipe, recipe.parent / "whole")
    assert (ended["signal"], ended["error"]) == (0, "")
    return recipe.parent / "whole", ended["seconds"]


def checkpoint(out):
    return untimed(load_checkpoint(out / "checkpoint.pt"))


@pytest.mark.slow
def test_killed_at_random_moments(nursery, recipe, whole, tmp_path):
    wanted, length, draw = checkpoint(whole[0]), whole[1], random.Random(0)
    kills, runs, resumed_at = 0, 0, set()
    while kills < KILLS:
        out = tmp_path / f"run{runs}"
        resume = has_checkpoint(out)
        after = draw.uniform(0, 0.15 * length)
        ended = nursery.run(train_until, recipe, out, resume=resume, kill_after=after)
        if ended["signal"] == signal.SIGKILL:
            kills += 1
            if has_checkpoint(out):
                state, notice = load_latest(out)
                assert notice is None  # never a corrupt one in its place
                resumed_at.add((state["epoch"], state["batch"]))
            continue
        assert ended["error"] == ""
        assert same(checkpoint(out), wanted)
        assert (out / "result.json").is_file()
        runs += 1
    print(f"{kills} kills survived at {len(resumed_at)} different places; {runs} runs ended as the whole one")
    assert runs >= 3
    assert len(resumed_at) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call"), CRASHES)
def test_killed_while_a_checkpoint_is_written(nursery, recipe, whole, tmp_path, name, call):
    assert nursery.run(train_until, recipe, tmp_path, kill_in=[name, call])["signal"] == signal.SIGKILL
    if has_checkpoint(tmp_path):
        _, notice = load_latest(tmp_path)
        assert notice is None
    assert nursery.run(train_until, recipe, tmp_path, resume=has_checkpoint(tmp_path))["error"] == ""
    assert same(checkpoint(tmp_path), checkpoint(whole[0]))
