"""The time of a whole training step, of several tasks side by side."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor

from attnmix.benchmark.rounds import measure_rounds, ratio_interval
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


class TrainingStep:
    """One step of a task on one batch, again and again: mix, forward, loss, backward, AdamW.

    Args:
        task: a model with a method; several tasks may share the model.
        images: `[B, C, H, W]` on the model's device.
        labels: `[B]`.
        autocast: run the forward under autocast to this type.
        moments: AdamW's state, which steps that share a model may share too: a second set of moments for each
            would fill the memory.
    """

    def __init__(
        self,
        task: MixTask,
        images: Tensor,
        labels: Tensor,
        *,
        autocast: torch.dtype | None = None,
        moments: defaultdict[Tensor, Any] | None = None,
    ) -> None:
        self.task = task
        self.images = images
        self.labels = labels
        self.autocast = autocast
        self.optimizer = create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=1e-6, weight_decay=0.05)
        if moments is not None:
            self.optimizer.state = moments

    def forward(self) -> Tensor:
        """The loss of a freshly mixed batch."""
        with torch.autocast(self.images.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            loss: Tensor = self.task(self.images, self.labels)["loss"]
        return loss

    def __call__(self) -> None:
        """The whole step; leaves no gradients behind."""
        self.forward().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def time_steps(
    steps: Mapping[str, TrainingStep],
    *,
    rounds: int,
    warmup: int = 2,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Seconds `[rounds]` of each step, all steps once per round in a shuffled order; see `measure_rounds`.

    Raises:
        ValueError: no step, or too few rounds.
    """
    if not steps:
        raise ValueError("no step to time")
    device = next(iter(steps.values())).images.device
    return measure_rounds(steps, device=device, rounds=rounds, warmup=warmup, seed=seed, progress=progress)


def weigh(seconds: Mapping[str, np.ndarray], shares: Mapping[str, float]) -> np.ndarray:
    """Seconds `[rounds]` of a step that is each of these as often as its share says."""
    return np.sum([share * seconds[name] for name, share in shares.items()], axis=0)


def step_cost(seconds: np.ndarray, baseline: np.ndarray) -> StepCost:
    """What steps of these rounds cost beside the baseline's of the same rounds, both `[rounds]`."""
    found = ratio_interval(seconds, baseline)
    return StepCost(float(np.median(seconds)), found.ratio, found.low, found.high)
