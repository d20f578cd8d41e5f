"""Square holes cut into images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnmix.mixing.mixed import MixedBatch
from attnmix.mixing.regions import boxes_to_mask


def square_holes(side: int, centre: Tensor, *, image_size: tuple[int, int]) -> Tensor:
    """Squares whose centre lies anywhere on the image, clipped at the border.

    Every integer place whose centre lies on the image is equally likely, for odd and even sides alike.

    Args:
        side: of the whole square, in pixels.
        centre: uniform numbers in [0, 1), `[n, 2]`, for the row and the column.
        image_size: height and width in pixels.

    Returns:
        Boxes `[n, 4]` in pixels.
    """
    size = torch.tensor(image_size)
    start = (centre.double() * (size + 1 - side % 2)).long() - side // 2
    stop = torch.minimum(start + side, size)
    start = start.clamp(min=0)
    return torch.cat([start, stop - start], dim=1)


@dataclass(frozen=True)
class Cut:
    """CutOut: a box of every image becomes 0, the mean of normalised images. Every image is its own partner.

    Attributes:
        box: `[B, 4]` int64, top, left, height, width in pixels.
    """

    box: Tensor

    kind: ClassVar[str] = "cut"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> the same with a hole each; nothing comes from a source."""
        batch, _, height, width = images.shape
        box = self.box.to(images.device, non_blocking=True)
        hole = boxes_to_mask(box, (height, width))
        return MixedBatch(
            images=images.masked_fill(hole[:, None], 0),
            source_index=torch.arange(batch, device=images.device),
            source_weight=torch.zeros(batch, device=images.device),
            source_mask=torch.zeros_like(hole),
            draw=self,
        )
