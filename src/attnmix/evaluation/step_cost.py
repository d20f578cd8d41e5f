"""What a training step costs beside plain CutMix.

Interleaved, because absolute times on shared machines are noise.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor

from attnmix.task import MixTask


@dataclass(frozen=True)
class StepCost:
    """Cost of one method's step.

    Attributes:
        seconds: of a step, the median; CPU time on the CPU, device time on a GPU.
        ratio: to the baseline's, measured in the same rounds.
        low: lower end of the ratio's 95 % bootstrap interval over rounds.
        high: its upper end.
    """

    seconds: float
    ratio: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Plain numbers, for a results file."""
        return asdict(self)


def measure_step_costs(
    tasks: Mapping[str, MixTask],
    images: Tensor,
    labels: Tensor,
    *,
    baseline: str,
    rounds: int = 20,
    warmup: int = 2,
    autocast: torch.dtype | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, StepCost]:
    """Time a step (mix, forward, loss, backward, AdamW) of each task, all tasks once per round, shuffled.

    Args:
        tasks: by label; they may share one model.
        images: `[B, C, H, W]` on the models' device.
        labels: `[B]`.
        baseline: label of the task the others are compared with.
        rounds: how often each task is timed.
        warmup: rounds before that, not counted.
        autocast: run the forward under autocast to this type.
        seed: of the order within each round and of the bootstrap.
        progress: called with rounds done and in all.

    Raises:
        ValueError: the baseline is no task.
    """
    if baseline not in tasks:
        raise ValueError(f'baseline "{baseline}" is none of the tasks: {", ".join(tasks)}')
    device = images.device
    optimizers = {
        label: create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=1e-6, weight_decay=0.05)
        for label, task in tasks.items()
    }

    def step(label: str) -> None:
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            loss = tasks[label](images, labels)["loss"]
        loss.backward()
        optimizers[label].step()
        optimizers[label].zero_grad(set_to_none=True)

    random = np.random.default_rng(seed)
    names = list(tasks)
    times = np.zeros((rounds, len(names)))
    for turn in range(-warmup, rounds):
        for column in random.permutation(len(names)):
            seconds = _time(lambda label=names[column]: step(label), device)  # type: ignore[misc]
            if turn >= 0:
                times[turn, column] = seconds
        if progress is not None:
            progress(turn + warmup + 1, rounds + warmup)

    base = names.index(baseline)

    def ratios(sample: np.ndarray) -> np.ndarray:
        return np.median(sample / sample[:, [base]], axis=0)

    middle = ratios(times)
    boot = np.stack([ratios(times[random.integers(rounds, size=rounds)]) for _ in range(1000)])
    low, high = np.quantile(boot, [0.025, 0.975], axis=0)
    typical = np.median(times, axis=0)
    return {
        label: StepCost(*(float(row[column]) for row in (typical, middle, low, high)))
        for column, label in enumerate(names)
    }


def _time(step: Callable[[], None], device: torch.device) -> float:
    """Seconds of one step: device events on a GPU, elsewhere this process's CPU time."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            stop.record()
            torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3
    before = time.process_time()
    step()
    return time.process_time() - before
