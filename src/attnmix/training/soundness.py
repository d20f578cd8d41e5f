"""Losses and weights that are not finite: found, told, and the batch that did it kept."""

from pathlib import Path

import torch
from torch import Tensor, nn

from attnmix.mixing import LabelMaps, class_labels
from attnmix.training.sharding import whole

__all__ = ["diverged", "first_unsound", "keep_batch", "unsound_weight"]


def first_unsound(losses: list[Tensor]) -> int | None:
    """Which of these losses is the first that is not finite; waits for the device, once."""
    finite = torch.stack(losses).isfinite()
    return None if finite.all() else int(finite.logical_not().nonzero()[0])


def unsound_weight(module: nn.Module) -> str | None:
    """The name of the first parameter that is not finite; of parameters in parts (FSDP2), in any process's."""
    finite = torch.stack([whole(parameter.isfinite().all()).cpu() for parameter in module.parameters()])
    if finite.all():
        return None
    names = [name for name, _ in module.named_parameters()]
    return names[int(finite.logical_not().nonzero()[0])]


def diverged(what: str, *, kept: str) -> FloatingPointError:
    """The error that ends a run."""
    return FloatingPointError(f"{what}: {kept}; try a lower lr, clip_grad 1.0, or precision no")


def keep_batch(
    images: Tensor, labels: Tensor | LabelMaps, folder: Path, *, epoch: int, step: int, process: int
) -> str:
    """Write a batch as it came from the loader, to look at what did it: `images`, `labels`, `epoch`, `step`.

    Returns:
        what to tell: where it is, or why it is not.
    """
    path = folder / f"not-finite-epoch{epoch}-step{step}-process{process}.pt"
    plain = class_labels(labels)
    try:
        torch.save({"images": images.cpu(), "labels": plain.cpu(), "epoch": epoch, "step": step}, path)
    except (OSError, RuntimeError) as error:  # what ends the run is told all the same
        return f"its batch could not be kept: {error}"
    return f"its batch, before mixing, is kept in {path}"
