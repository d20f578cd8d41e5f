from collections import defaultdict

import numpy as np
import pytest
import torch

import attnmix
from attnmix.benchmark.step_time import TrainingStep, step_cost, time_steps, weigh
from tests.conftest import NUM_CLASSES

BATCH = torch.randn(2, 3, 16, 24), torch.tensor([0, 1])


def make_step(model, method="cutmix", **options):
    return TrainingStep(
        attnmix.MixTask(model, attnmix.create_method(method, num_classes=NUM_CLASSES)), *BATCH, **options
    )


def test_a_step_trains_and_leaves_no_gradient(make_vit):
    step = make_step(make_vit())
    before = [parameter.clone() for parameter in step.task.parameters()]
    step()
    assert any(not torch.equal(old, new) for old, new in zip(before, step.task.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in step.task.parameters())


def test_autocast_is_used(make_vit, monkeypatch):
    seen = []
    for autocast in (None, torch.bfloat16):
        step = make_step(make_vit(), autocast=autocast)
        forward = step.task.forward
        monkeypatch.setattr(
            step.task,
            "forward",
            lambda *batch, run=forward: seen.append(torch.is_autocast_enabled("cpu")) or run(*batch),
        )
        step()
    assert seen == [False, True]


def test_steps_of_one_model_may_share_their_moments(make_vit):
    model, moments = make_vit(), defaultdict(dict)
    steps = [make_step(model, method, moments=moments) for method in ("none", "tokenmixup")]
    for step in steps:
        step()
    assert all(step.optimizer.state is moments for step in steps)
    assert moments[model.head.weight]["step"] == 2
    assert len(moments) == len(list(steps[1].task.parameters()))  # ScoreNet's too
    alone = make_step(model)
    alone()
    assert alone.optimizer.state is not moments


def test_steps_are_timed_in_rounds(make_vit):
    model, told = make_vit(), []
    steps = {name: make_step(model, name) for name in ("none", "cutmix")}
    seconds = time_steps(steps, rounds=3, warmup=1, progress=lambda *done: told.append(done))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {name: times.shape for name, times in seconds.items()} == {"none": (3,), "cutmix": (3,)}
    with pytest.raises(ValueError, match="no step to time"):
        time_steps({}, rounds=3)


def test_kinds_are_weighed_within_each_round():
    seconds = {"paste": np.array([2.0, 4.0, 6.0]), "blend": np.array([1.0, 1.0, 3.0])}
    mixed = weigh(seconds, {"paste": 0.5, "blend": 0.5})
    assert mixed.tolist() == [1.5, 2.5, 4.5]
    cost = step_cost(mixed, seconds["paste"])
    assert (cost.seconds, cost.ratio) == (2.5, 0.75)
    assert cost.low <= cost.ratio <= cost.high
    assert cost.as_dict() == {"seconds": 2.5, "ratio": 0.75, "low": cost.low, "high": cost.high}
