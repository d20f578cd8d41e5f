"""Pasting by a mask of any shape, hard or soft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnmix.mixing.mixed import MixedBatch


@dataclass(frozen=True)
class PasteMask:
    """The source's pixels in place, wherever a mask says so.

    Attributes:
        source_index: `[B]` int64.
        mask: `[B, H, W]`; bool, True = source pixel, or float in [0, 1], the source's share of the pixel.
        source_weight: `[B]` label weight; None = the mask's mean, for a bool mask the exact pixel share.
    """

    source_index: Tensor
    mask: Tensor
    source_weight: Tensor | None = None

    kind: ClassVar[str] = "paste"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> pixels of one of two images, of both by a soft mask; keeps the mask's gradient."""
        index = self.source_index.to(images.device, non_blocking=True)
        mask = self.mask.to(images.device, non_blocking=True)
        weight = self.source_weight
        weight = mask.float().mean(dim=(1, 2)) if weight is None else weight.to(images.device, non_blocking=True)
        hard = mask.dtype == torch.bool
        if hard:
            mixed = torch.where(mask[:, None], images[index], images)
        else:  # lerp keeps identical images identical to the bit
            mixed = torch.lerp(images, images[index], mask[:, None].to(images.dtype))
        return MixedBatch(
            images=mixed,
            source_index=index,
            source_weight=weight.detach().float(),
            source_mask=mask if hard else None,
            draw=self,
            source_share=None if hard else mask.detach().float(),
        )
