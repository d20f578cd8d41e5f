"""What an epoch adds up, from its first batch to its last, also across an interruption."""

import math
import time
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

__all__ = ["EpochSums"]

_COUNTED = "counted"  # images whose loss was finite


class EpochSums:
    """Losses and statistics summed over images, and training accuracy; on the device, so as not to wait for it.

    Attributes:
        accuracy: of the mixed images against the label of most weight.
        images: seen by all processes, also those whose loss was not finite.
        lr: of the last update, before layer decay.
        skipped: updates left out for gradients that are not finite.
    """

    def __init__(self, num_classes: int, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._sums: dict[str, Tensor] = {}
        self._before = 0.0
        self._started: float | None = time.perf_counter()
        options: dict[str, Any] = {"average": "micro", "validate_args": False}
        self.accuracy = MulticlassAccuracy(num_classes, **options).to(accelerator.device)
        self.images, self.lr, self.skipped = 0, 0.0, 0

    @property
    def seconds(self) -> float:
        """Spent on this epoch's training so far."""
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)

    def freeze(self) -> None:
        """The epoch's training is done: its time runs no further."""
        self._before, self._started = self.seconds, None

    @property
    def speed(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    def add(self, result: dict[str, Any], count: int) -> None:
        """Add a step's result of this process, on `count` images; no number of one whose loss is not finite.

        That one's names are added all the same: processes sum their numbers up in one order.
        """
        values = {_COUNTED: torch.ones_like(result["loss"]), "train_loss": result["loss"]}
        values |= {f"loss_{name}": part for name, part in result["losses"].items()}
        values |= {f"stat_{name}": value for name, value in result["stats"].items()}
        is_sound = result["loss"].detach().isfinite()
        for name, value in values.items():
            summed = torch.where(is_sound, value.detach().float() * count, 0.0)
            self._sums[name] = self._sums[name] + summed if name in self._sums else summed
        self.accuracy.update(result["output"].argmax(dim=1), result["target"].argmax(dim=1))
        self.images += count * self._accelerator.num_processes

    def entry(self) -> dict[str, float]:
        """The epoch's numbers over all processes, NaN where not one loss was finite; all have to ask."""
        entry: dict[str, float] = {"lr": self.lr}
        totals = self._accelerator.reduce(torch.stack(list(self._sums.values())), "sum").tolist()
        means = dict(zip(self._sums, totals, strict=True))
        counted = means.pop(_COUNTED)
        entry.update({name: total / counted if counted else math.nan for name, total in means.items()})
        entry["train_top1"] = 100 * self.accuracy.compute().item()
        if self.skipped:
            entry["skipped_updates"] = self.skipped
        return entry

    def state(self) -> dict[str, Any]:
        """This process's sums, for a checkpoint."""
        return {
            # on the CPU: another process that receives them must not open a context on this one's GPU
            "sums": {name: value.cpu() for name, value in self._sums.items()},
            "accuracy": {name: getattr(self.accuracy, name).cpu() for name in self.accuracy._defaults},
            "images": self.images,
            "lr": self.lr,
            "skipped": self.skipped,
            "seconds": self.seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        device = self._accelerator.device
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        if self._sums and _COUNTED not in self._sums:  # a checkpoint from before this was kept
            own = state["images"] / self._accelerator.num_processes
            self._sums = {_COUNTED: torch.tensor(own, device=device), **self._sums}
        for name, value in state["accuracy"].items():
            setattr(self.accuracy, name, value.to(device))
        self.accuracy._update_count = 1  # else it warns that nothing was added
        self.images, self.lr, self.skipped = state["images"], state["lr"], state["skipped"]
        self._before = state["seconds"]

    def __bool__(self) -> bool:
        return bool(self._sums)
