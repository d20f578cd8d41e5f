"""A whole image made smaller and pasted into another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.mixing.mixed import MixedBatch
from attnmix.mixing.regions import boxes_to_mask

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


def boxes_inside(ratio: Tensor, corner: Tensor, *, image_size: tuple[int, int]) -> Tensor:
    """Boxes of the image's own shape, anywhere inside it with equal chances.

    Args:
        ratio: side of the box over side of the image, in [0, 1], `[n]`; at least one pixel.
        corner: uniform numbers in [0, 1), `[n, 2]`, for the row and the column.
        image_size: height and width in pixels.

    Returns:
        Boxes `[n, 4]` in pixels.
    """
    size = torch.tensor(image_size)
    side = (size * ratio.double()[:, None]).round().long().clamp(min=1)
    start = (corner.double() * (size - side + 1)).long()
    return torch.cat([start, side], dim=1)


def shrunk_into_boxes(images: Tensor, boxes: Tensor, *, interpolation: str = "bilinear") -> Tensor:
    """Each image `[B, C, H, W]` resized into its box `[B, 4]`; what lies outside the box means nothing.

    As `torch.nn.functional.interpolate` does it, without smoothing beforehand, for boxes of any sizes at once.
    """
    height, width = images.shape[-2:]
    kind = torch.promote_types(images.dtype, torch.float32)  # half precision would misplace pixels
    top, left, rows, columns = boxes[:, :, None].unbind(1)
    nearest = interpolation == "nearest"
    row = _places(torch.arange(height, device=images.device) - top, rows, height, kind, nearest=nearest)
    column = _places(torch.arange(width, device=images.device) - left, columns, width, kind, nearest=nearest)
    shape = (len(images), height, width)
    grid = torch.stack([column[:, None, :].expand(shape), row[:, :, None].expand(shape)], dim=-1)
    resized = F.grid_sample(images.to(kind), grid, interpolation, padding_mode="border", align_corners=False)
    return resized.to(images.dtype)


def _places(place: Tensor, side: Tensor, whole: int, kind: torch.dtype, *, nearest: bool) -> Tensor:
    """Where the pixels `[B, L]` of a box read the image, as `grid_sample` counts: -1 and 1 are its edges."""
    if nearest:  # rounds down, as torch's nearest does; here to the middle of the pixel that is meant
        at = (place * whole).div(side, rounding_mode="floor").to(kind) + 0.5
        return at * (2 / whole) - 1
    return (place.to(kind) + 0.5) * 2 / side.to(kind) - 1


@dataclass(frozen=True)
class PasteResized:
    """ResizeMix: all of the partner, resized into a box. An image that is its own partner stays itself.

    Attributes:
        source_index: `[B]` int64.
        box: `[B, 4]` int64, top, left, height, width in pixels, at least one pixel.
        interpolation: `bilinear`, `bicubic` or `nearest`.
    """

    source_index: Tensor
    box: Tensor
    interpolation: str = "bilinear"

    kind: ClassVar[str] = "paste"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> source pixels in the boxes; source weight = exact pixel share, 0 for one's own."""
        batch, _, height, width = images.shape
        index = self.source_index.to(images.device, non_blocking=True)
        box = self.box.to(images.device, non_blocking=True)
        other = index != torch.arange(batch, device=images.device)
        mask = boxes_to_mask(box, (height, width)) & other[:, None, None]
        source = shrunk_into_boxes(images[index], box, interpolation=self.interpolation)
        return MixedBatch(
            images=torch.where(mask[:, None], source, images),
            source_index=index,
            source_weight=(box[:, 2] * box[:, 3] * other).float() / (height * width),
            source_mask=mask,
            draw=self,
        )
