"""Timing in rounds: every action once per round, in a shuffled order, and ratios within a round.

Absolute times on shared machines are noise; what shares a round shares its disturbances.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

LEAST_ROUNDS = 3  # a median of fewer has no interval
RESAMPLES = 1000


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times.

    Attributes:
        ratio: the median over rounds.
        low: lower end of its 95 % bootstrap interval over rounds.
        high: its upper end.
    """

    ratio: float
    low: float
    high: float


def measure_rounds(
    actions: Mapping[str, Callable[[], object]],
    *,
    device: torch.device,
    rounds: int,
    warmup: int = 2,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Time all actions once per round, in an order shuffled anew each round.

    Args:
        actions: by name; what they return is dropped.
        device: where they work: device time on a GPU, else this process's CPU time.
        rounds: how often each is timed.
        warmup: rounds before that, not counted.
        seed: of the order.
        progress: called after each round with rounds done and in all, warm-up included.

    Returns:
        Seconds `[rounds]` of each action, in the order of `actions`.

    Raises:
        ValueError: fewer than three rounds, or a negative warm-up.
    """
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"rounds is {rounds}, but an interval needs {LEAST_ROUNDS} or more")
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}, but must be 0 or more")
    random = np.random.default_rng(seed)
    names = list(actions)
    seconds = {name: np.zeros(rounds) for name in names}
    for turn in range(-warmup, rounds):
        for column in random.permutation(len(names)):
            took = _seconds(actions[names[column]], device)
            if turn >= 0:
                seconds[names[column]][turn] = took
        if progress is not None:
            progress(turn + warmup + 1, rounds + warmup)
    return seconds


def ratio_interval(seconds: np.ndarray, baseline: np.ndarray, *, seed: int = 0) -> Ratio:
    """The median of the rounds' ratios `seconds / baseline`, both `[rounds]`, with its 95 % bootstrap interval.

    Raises:
        ValueError: not the same rounds.
    """
    if seconds.shape != baseline.shape:
        raise ValueError(f"{len(seconds)} rounds cannot be compared with {len(baseline)}: want the same rounds")
    # a clock too coarse for the action may say 0 of both
    ratios = np.divide(seconds, baseline, out=np.ones_like(seconds, dtype=float), where=baseline > 0)
    drawn = np.random.default_rng(seed).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], axis=1), [0.025, 0.975])
    return Ratio(float(np.median(ratios)), float(low), float(high))


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """Seconds of one action: device events on a GPU, elsewhere this process's CPU time."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            action()
            stop.record()
            torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3
    before = time.process_time()
    action()
    return time.process_time() - before
