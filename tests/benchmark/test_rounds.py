import numpy as np
import pytest
import torch

from attnmix.benchmark import rounds
from attnmix.benchmark.rounds import measure_rounds, ratio_interval

CPU = torch.device("cpu")


def test_every_action_runs_once_per_round_in_changing_order_and_warm_up_is_not_counted():
    ran, told = [], []
    actions = {name: lambda name=name: ran.append(name) for name in "abc"}
    seconds = measure_rounds(
        actions, device=CPU, rounds=6, warmup=2, progress=lambda done, total: told.append((done, total))
    )
    turns = [ran[start : start + 3] for start in range(0, len(ran), 3)]
    assert len(turns) == 8
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert told == [(done, 8) for done in range(1, 9)]
    assert list(seconds) == ["a", "b", "c"]
    assert all(times.shape == (6,) for times in seconds.values())


def test_the_order_is_the_seeds():
    def order(seed):
        ran = []
        actions = {name: lambda name=name: ran.append(name) for name in "abcd"}
        measure_rounds(actions, device=CPU, rounds=4, warmup=0, seed=seed)
        return ran

    assert order(1) == order(1) != order(2)


def test_what_is_measured_goes_to_the_action_and_the_round_it_is_of(monkeypatch):
    clock = iter(range(1, 100))
    monkeypatch.setattr(rounds, "_seconds", lambda action, device: 100 * action() + next(clock))
    seconds = measure_rounds({"a": lambda: 1, "b": lambda: 2}, device=CPU, rounds=3, warmup=1)
    assert [int(times) // 100 for times in seconds["a"]] == [1, 1, 1]
    assert [int(times) // 100 for times in seconds["b"]] == [2, 2, 2]
    assert sorted(int(time) % 100 for times in seconds.values() for time in times) == [3, 4, 5, 6, 7, 8]


def test_a_cpu_is_timed_by_what_this_process_used(monkeypatch):
    clock = iter([10.0, 12.5, 20.0, 20.5, 30.0, 31.0])
    monkeypatch.setattr(rounds.time, "process_time", lambda: next(clock))
    assert measure_rounds({"a": int}, device=CPU, rounds=3, warmup=0)["a"].tolist() == [2.5, 0.5, 1.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_timed_by_its_own_events():
    big = torch.randn(2048, 2048, device="cuda")
    seconds = measure_rounds({"big": lambda: big @ big}, device=torch.device("cuda"), rounds=3)
    assert (seconds["big"] > 0).all()


def test_ratios_are_of_the_same_round_and_the_baselines_is_one():
    slower = np.linspace(1.0, 3.0, 21)  # every round is slower than the last
    jitter = np.random.default_rng(0).uniform(0.9, 1.1, 21)
    half = ratio_interval(0.5 * slower * jitter, slower)
    assert 0.45 <= half.low <= half.ratio <= half.high <= 0.55
    assert half.low < half.high
    assert half.ratio == np.median(0.5 * jitter)
    assert half == ratio_interval(0.5 * slower * jitter, slower)
    one = ratio_interval(slower, slower)
    assert (one.ratio, one.low, one.high) == (1, 1, 1)


def test_the_interval_narrows_with_rounds():
    noise = np.random.default_rng(0).uniform(0.8, 1.2, 400)
    few, many = (ratio_interval(noise[:count], np.ones(count)) for count in (10, 400))
    assert many.high - many.low < few.high - few.low


def test_the_seed_draws_the_resamples():
    noise, ones = np.random.default_rng(0).uniform(0.8, 1.2, 30), np.ones(30)
    found = {
        (ratio_interval(noise, ones, seed=seed).low, ratio_interval(noise, ones, seed=seed).high)
        for seed in range(5)
    }
    assert len(found) > 1


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="rounds is 2, but an interval needs 3 or more"):
        measure_rounds({}, device=CPU, rounds=2)
    with pytest.raises(ValueError, match="warmup is -1"):
        measure_rounds({}, device=CPU, rounds=3, warmup=-1)
    with pytest.raises(ValueError, match="3 rounds cannot be compared with 4"):
        ratio_interval(np.ones(3), np.ones(4))
