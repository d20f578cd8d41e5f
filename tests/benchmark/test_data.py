import itertools

import pytest
import torch

from attnmix.benchmark.data import Rate, loader_rate, step_rate, together, verdict

CPU = torch.device("cpu")


def batches_of(*sizes):
    return [(torch.zeros(size, 3, 2, 2), torch.zeros(size)) for size in sizes]


class Clock:
    """A clock that work moves on, and nothing else."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, items, seconds):
        for item in items:
            self.now += seconds
            yield item


class Slow:
    """A loader whose batches take their time, the first ones more."""

    def __init__(self, clock, sizes, seconds, *, start=0.0):
        self.clock, self.sizes, self.seconds, self.start = clock, sizes, seconds, start
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        self.clock.now += self.start
        return self.clock.spend(batches_of(*self.sizes), self.seconds)


def test_a_loaders_rate_counts_images_after_the_warm_up():
    clock = Clock()
    rate = loader_rate(Slow(clock, [4] * 9, 0.5, start=7.0), batches=5, warmup=2, clock=clock)
    assert rate == Rate(images=20, seconds=2.5, batches=5, passes=1)
    assert rate.per_second == 8
    cold = loader_rate(Slow(clock, [4] * 9, 0.5, start=7.0), batches=5, warmup=0, clock=clock)
    assert cold.seconds == 9.5


def test_more_batches_than_an_epoch_go_round():
    clock = Clock()
    loader = Slow(clock, [4, 4, 1], 0.5)
    rate = loader_rate(loader, batches=7, warmup=1, clock=clock)
    assert rate == Rate(images=4 + 1 + 9 + 4 + 4, seconds=3.5, batches=7, passes=3)
    assert loader.passes == 3


def test_the_time_may_end_it_sooner_but_one_batch_counts():
    clock = Clock()
    rate = loader_rate(Slow(clock, [4] * 9, 0.5), batches=8, warmup=1, seconds=1.2, clock=clock)
    assert (rate.batches, rate.seconds) == (3, 1.5)
    rate = loader_rate(Slow(clock, [4] * 9, 0.5), batches=8, warmup=3, seconds=0.1, clock=clock)
    assert rate.batches == 1


def test_a_loaders_progress_counts_the_warm_up():
    seen = []
    loader_rate(batches_of(2, 2, 2), batches=2, warmup=1, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_models_rate_leaves_the_warm_up_out():
    clock, seconds = Clock(), itertools.chain([9.0, 9.0], itertools.repeat(0.25))

    def step():
        clock.now += next(seconds)

    seen = []
    rate = step_rate(
        step, images=8, steps=4, device=CPU, warmup=2, clock=clock, progress=lambda *counts: seen.append(counts)
    )
    assert rate == Rate(images=32, seconds=1.0, batches=4)
    assert seen == [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]


def test_a_clock_that_stands_still_gives_no_error():
    assert Rate(4, 0.0, 1).per_second == float("inf")


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda: loader_rate(batches_of(2), batches=0), "batches is 0, but must be 1 or more"),
        (lambda: loader_rate([], batches=2), "gave not one batch: the training data are empty"),
        (lambda: step_rate(int, images=2, steps=0, device=CPU), "steps is 0, but must be 1 or more"),
    ],
)
def test_wrong_settings_are_named(measure, message):
    with pytest.raises(ValueError, match=message):
        measure()


def rate(per_second):
    return Rate(per_second, 1.0, 1)


def test_with_workers_the_slower_sets_the_pace_and_without_they_take_turns():
    assert together(rate(300), rate(100), workers=2) == 100
    assert together(rate(300), rate(900), workers=2) == 300
    assert together(rate(300), rate(100), workers=0) == pytest.approx(75)


@pytest.mark.parametrize(
    ("loader", "model", "workers", "words"),
    [
        (100, 400, 2, ["the loader holds training back", "4.0 times", "waits 75%", "of 8 here", "a larger model"]),
        (400, 100, 2, ["the model holds training back", "4.0 times", "would change nothing"]),
        (300, 100, 0, ["take turns", "loading is 25% of the time", "More loader.workers would read beside"]),
        (100, 300, 0, ["loading is 75% of the time", "a larger model would cost less"]),
        (9900, 100, 0, ["loading is 1% of the time", "the model holds training back", "next to nothing"]),
    ],
)
def test_the_verdict_names_who_holds_back_by_how_much_and_what_helps(loader, model, workers, words):
    said = verdict(rate(loader), rate(model), workers=workers, cores=8)
    assert said.startswith(f"With loader.workers {workers} ")
    assert [word for word in words if word not in said] == []


def test_a_larger_model_is_no_advice_where_the_model_is_slower():
    assert "larger model" not in verdict(rate(300), rate(100), workers=0, cores=8)
