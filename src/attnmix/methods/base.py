"""What every mixing method is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.mixing import MixedBatch, mix_targets, soft_targets


class MixMethod(nn.Module):
    """A way to mix a batch and to train on it.

    A subclass implements `mix` (pixels) and `forward` (a whole training step's loss); what it draws comes from
    `self.generator` alone. Extra parameters are made in `bind`.

    Args:
        num_classes: classes of the labels.
        smoothing: label smoothing, the share spread evenly over all classes.
        seed: of the method's own generator.

    Raises:
        ValueError: an option outside its range, naming it.
    """

    def __init__(self, *, num_classes: int, smoothing: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}, but must be at least 1")
        if not isinstance(seed, int):
            raise ValueError(f"seed is {seed!r}, but must be a whole number")
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing is {smoothing}, but must be in [0, 1)")
        self.num_classes = num_classes
        self.smoothing = smoothing
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps the batch, blends (Mixup) or pastes: compare what blends alike."""
        return {"keep": 1.0, "blend": 0.0, "paste": 0.0}

    def bind(self, view: BackboneView) -> None:
        """Check that the method can work on this model, and make the parameters it adds. Called once.

        Raises:
            ValueError: the model cannot serve this method; says what to use instead.
        """

    def mix(self, view: BackboneView, images: Tensor) -> MixedBatch:
        """Draw a mix and apply it to the pixels: `[B, C, H, W]` -> `MixedBatch`."""
        raise NotImplementedError

    def forward(self, view: BackboneView, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """One training step up to the loss; see `MixTask` for what the dictionary holds."""
        mixed = self.mix(view, images)
        return self.outcome(mixed, view(mixed.images), self.targets(labels))

    def targets(self, labels: Tensor) -> Tensor:
        """Smoothed label distributions `[B, C]` of the unmixed images."""
        return soft_targets(labels, num_classes=self.num_classes, smoothing=self.smoothing)

    def outcome(self, mixed: MixedBatch, output: Tensor, targets: Tensor, **more_losses: Tensor) -> dict[str, Any]:
        """Put a step's result together: cross-entropy against the mixed labels, plus further losses."""
        target = mix_targets(targets, mixed.source_index, mixed.source_weight)
        losses = {"classification": F.cross_entropy(output.float(), target), **more_losses}
        return {
            "loss": torch.stack(list(losses.values())).sum(),
            "output": output,
            "target": target,
            "losses": losses,
            "mixed": mixed,
        }
