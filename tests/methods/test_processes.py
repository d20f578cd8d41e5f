"""Draws of the processes of one run: the same kind of step in all, boxes of their own in each."""

import pytest
import torch

import attnmix
from attnmix.methods import METHODS
from attnmix.task import MixTask
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.methods.settings import options_for

STEPS = 16
MIXED = {"prob": 0.7, "mixup_prob": 0.5, "mode": "elem"}


def as_process(rank, name, options, batch):
    """What that process's method draws in some steps, with batches of its own size."""
    settings = options_for(name, tiny_vit) if name in METHODS else {}
    task = MixTask(tiny_vit(), attnmix.create_method(name, num_classes=NUM_CLASSES, **{**settings, **options}))
    task.method.draw_as(rank)
    images = torch.rand(batch, 3, 16, 24, generator=torch.Generator().manual_seed(4))
    labels = torch.arange(batch) % NUM_CLASSES
    return [task.mix(images, labels) for _ in range(STEPS)]


def told(mixed):
    """The kind of a step, and the layer where hidden states are mixed."""
    return mixed.draw.kind, getattr(mixed.draw, "layer", None)


@pytest.mark.parametrize("name", [*METHODS, "mixup+cutmix", "tokenmixup+smmix"])
def test_kinds_are_the_same_in_all_processes_and_boxes_in_none(name):
    known = set().union(*(attnmix.methods.method_options(member, {}) for member in name.split("+")))
    options = {option: value for option, value in MIXED.items() if option in known}
    first, second, third = (as_process(rank, name, options, batch) for rank, batch in ((0, 4), (1, 4), (2, 5)))
    assert (
        [told(mixed) for mixed in first] == [told(mixed) for mixed in second] == [told(mixed) for mixed in third]
    )
    again = as_process(1, name, options, 4)
    assert all(a.images.equal(b.images) for a, b in zip(again, second, strict=True))
    if name == "none":
        return
    if "prob" in known:
        assert len({told(mixed) for mixed in first}) > 1
    same = [
        a.images.equal(b.images) and a.source_weight.equal(b.source_weight)
        for a, b in zip(first, second, strict=True)
        if a.draw.kind != "keep"
    ]
    assert not all(same)


def test_alone_one_generator_draws_everything():
    method = attnmix.create_method("cutmix", num_classes=NUM_CLASSES)
    assert method.kinds is method.generator
    assert set(method.get_draws()) == {"generator"}


@pytest.mark.parametrize("name", ["smmix", "mixup+cutmix", "tokenmixup"])
def test_draws_go_on_where_they_stood(name):
    images, labels = torch.rand(4, 3, 16, 24), torch.arange(4)
    tasks = [
        MixTask(tiny_vit(), attnmix.create_method(name, num_classes=NUM_CLASSES, mixup_prob=0.5)) for _ in range(2)
    ]
    tasks[0].method.draw_as(1)
    for _ in range(3):
        tasks[0].mix(images, labels)
    tasks[1].method.set_draws(tasks[0].method.get_draws())
    for _ in range(6):
        one, two = (task.mix(images, labels) for task in tasks)
        assert one.images.equal(two.images)
    alone = attnmix.create_method(name, num_classes=NUM_CLASSES, seed=3)
    tasks[1].method.set_draws(alone.get_draws())
    assert tasks[1].method.kinds is tasks[1].method.generator


def test_a_first_processs_state_serves_the_others(monkeypatch):
    """timm's loop keeps the first process's state alone."""
    images, labels = torch.rand(4, 3, 16, 24), torch.arange(4)
    options = {"num_classes": NUM_CLASSES, "mixup_prob": 0.5, "mode": "elem"}
    tasks = [MixTask(tiny_vit(), attnmix.create_method("cutmix", **options)) for _ in range(3)]
    tasks[0].method.draw_as(0)
    state = tasks[0].get_task_state()
    for rank in (1, 2):
        monkeypatch.setattr(MixTask, "_rank", lambda self, rank=rank: rank)
        tasks[rank].load_task_state(state)
    for _ in range(8):
        mixed = [task.method.mix(task.view, images, labels) for task in tasks]
        assert len({each.draw.kind for each in mixed}) == 1
        assert not mixed[0].images.equal(mixed[1].images)
        assert not mixed[1].images.equal(mixed[2].images)
