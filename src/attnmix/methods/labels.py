"""What label weight the source gets, as a policy of its own: the default is the pixels' share.

A label policy runs the training forward, so that it can read from it what it needs; TransMix's and TL-Align's
are in their own files.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.mixing import MixedBatch

Result = TypeVar("Result")


class LabelPolicy(Protocol):
    """How the source's label weight follows from the mixed batch and its training forward."""

    def bind(self, view: BackboneView) -> None:
        """Check that it can work on this model; ValueError with a way out if not."""

    def __call__(
        self,
        view: BackboneView,
        mixed: MixedBatch,
        forward: Callable[[Tensor], Result],
        generator: torch.Generator,
    ) -> tuple[Result, MixedBatch]:
        """`forward(mixed.images)`, and the batch with its final `source_weight`."""


class AreaLabel:
    """The share of the pixels (CutMix), or the blending weight (Mixup): what the draw says."""

    def bind(self, view: BackboneView) -> None:
        """Works on every model."""

    def __call__(
        self,
        view: BackboneView,
        mixed: MixedBatch,
        forward: Callable[[Tensor], Result],
        generator: torch.Generator,
    ) -> tuple[Result, MixedBatch]:
        """The plain forward; the batch as it is."""
        return forward(mixed.images), mixed
