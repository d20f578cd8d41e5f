import itertools

import pytest
import torch

import attnmix
from attnmix.evaluation import step_cost
from tests.conftest import NUM_CLASSES


@pytest.fixture
def tasks(make_vit):
    model = make_vit()
    return {
        n: attnmix.MixTask(model, attnmix.create_method(n, num_classes=NUM_CLASSES)) for n in ("none", "cutmix")
    }


BATCH = torch.randn(2, 3, 16, 24), torch.tensor([0, 1])


def test_ratios_are_of_the_same_round_and_the_baselines_is_one(tasks, monkeypatch):
    seconds = {"none": 2.0, "cutmix": 4.0}
    turns = itertools.count(1)

    def fake(step, device):
        label = step.__defaults__[0]
        return seconds[label] * (1 + next(turns) // 2)  # every round is slower than the last

    monkeypatch.setattr(step_cost, "_time", fake)
    costs = step_cost.measure_step_costs(tasks, *BATCH, baseline="cutmix", rounds=9)
    assert (costs["cutmix"].ratio, costs["cutmix"].low, costs["cutmix"].high) == (1, 1, 1)
    assert 0.4 < costs["none"].low <= costs["none"].ratio <= costs["none"].high < 0.7


def test_a_real_step_trains_and_reports_progress(tasks):
    before = [parameter.clone() for parameter in tasks["none"].parameters()]
    seen = []
    costs = step_cost.measure_step_costs(
        tasks,
        *BATCH,
        baseline="cutmix",
        rounds=3,
        warmup=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(cost.seconds > 0 for cost in costs.values())
    assert any(not torch.equal(old, new) for old, new in zip(before, tasks["none"].parameters(), strict=True))


def test_autocast_is_used(tasks, monkeypatch):
    seen = []
    forward = tasks["cutmix"].forward
    monkeypatch.setattr(
        tasks["cutmix"], "forward", lambda *batch: seen.append(torch.is_autocast_enabled("cpu")) or forward(*batch)
    )
    step_cost.measure_step_costs(tasks, *BATCH, baseline="cutmix", rounds=1, autocast=torch.bfloat16)
    assert all(seen)


def test_an_unknown_baseline_is_named(tasks):
    with pytest.raises(ValueError, match='baseline "smmix" is none of the tasks: none, cutmix'):
        step_cost.measure_step_costs(tasks, *BATCH, baseline="smmix")
