"""Images that a loader delivers against images that training steps consume: by the clock on the wall."""

import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

Progress = Callable[[int, int], None]
WORTHWHILE = 0.1  # share of the time: less is not worth anybody's trouble


@dataclass(frozen=True)
class Rate:
    """So many images in so many seconds.

    Attributes:
        images: counted.
        seconds: in which they came or went.
        batches: in which they came or went.
        passes: through the loader, the one under way included; 1 for steps.
    """

    images: int
    seconds: float
    batches: int
    passes: int = 1

    @property
    def per_second(self) -> float:
        """Images per second; infinite where the clock saw no time pass."""
        return self.images / self.seconds if self.seconds > 0 else math.inf


def loader_rate(
    loader: Iterable[Any],
    *,
    batches: int,
    warmup: int = 2,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Rate:
    """How fast `loader` delivers batches (images, labels) when nobody uses them.

    Args:
        loader: gone through again from its start where it ends early, as epochs do.
        batches: that count.
        warmup: batches before them, in which workers start and fill their queue.
        seconds: after which no further batch is asked for; one counts in any case.
        clock: seconds.
        progress: called after each batch with batches done and in all, warm-up included.

    Raises:
        ValueError: no batch asked for, or a loader without any.
    """
    _at_least_one("batches", batches)
    started = clock()
    source, passes, images, done = iter(loader), 1, 0, 0
    for turn in itertools.count(1):
        batch = next(source, None)
        if batch is None:
            source, passes = iter(loader), passes + 1
            batch = next(source, None)
        if batch is None:
            raise ValueError("the loader gave not one batch: the training data are empty")
        if turn <= warmup:
            _settle(batch[0].device)
            started = clock()
        else:
            images, done = images + len(batch[0]), done + 1
        if progress is not None:
            progress(turn, warmup + batches)
        if done == batches or (done and clock() - started >= seconds):
            _settle(batch[0].device)
            break
    return Rate(images, clock() - started, done, passes)


def step_rate(
    step: Callable[[], object],
    *,
    images: int,
    steps: int,
    device: torch.device,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Rate:
    """How fast training steps consume images that are there already.

    Args:
        step: one training step on a batch at hand.
        images: of that batch.
        steps: that count.
        device: where it runs, which is waited for.
        warmup: steps before them, in which kernels are chosen or compiled.
        clock: seconds.
        progress: called after each step with steps done and in all, warm-up included.

    Raises:
        ValueError: no step asked for.
    """
    _at_least_one("steps", steps)
    started = clock()
    for turn in range(1, warmup + steps + 1):
        step()
        if progress is not None:
            progress(turn, warmup + steps)
        if turn == warmup:
            _settle(device)
            started = clock()
    _settle(device)
    return Rate(images * steps, clock() - started, steps)


def together(loader: Rate, model: Rate, *, workers: int) -> float:
    """Images per second of training, as far as both rates tell.

    Without workers loading and stepping take turns; with them the slower one sets the pace (if there are cores
    for both).
    """
    if workers > 0:
        return min(loader.per_second, model.per_second)
    return 1 / (1 / loader.per_second + 1 / model.per_second)


def verdict(loader: Rate, model: Rate, *, workers: int, cores: int) -> str:
    """Two sentences: which one holds training back and by how much, and what would help."""
    delivered, consumed = loader.per_second, model.per_second
    name = f"With loader.workers {workers}"
    if workers == 0:
        share = together(loader, model, workers=0) / delivered
        found = f"{name} loading and steps take turns, and loading is {share:.0%} of the time"
        if share < WORTHWHILE:
            return f"{found}: the model holds training back. A faster loader would change next to nothing."
        return (
            f"{found}. More loader.workers would read beside the steps, {_other_ways(delivered, consumed, cores)}"
        )
    if delivered < consumed:
        lead, idle = consumed / delivered, 1 - delivered / consumed
        return (
            f"{name} the loader holds training back: the model could consume {lead:.1f} times what it delivers "
            f"and waits {idle:.0%} of the time. More loader.workers would help, "
            f"{_other_ways(delivered, consumed, cores)}"
        )
    return (
        f"{name} the model holds training back: the loader could deliver {delivered / consumed:.1f} times what it "
        "consumes. More loader.workers would change nothing."
    )


def _other_ways(delivered: float, consumed: float, cores: int) -> str:
    ways = f"where cores are free (of {cores} here); so would smaller image files or a lighter augmentation"
    return ways + ("; a larger model would cost less than it seems." if delivered < consumed else ".")


def _at_least_one(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name} is {count}, but must be 1 or more")


def _settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
