"""Images in cells: which cells come from the source, and what lies in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnmix.mixing.mixed import MixedBatch


def cell_numbers(side: int, cells: int, device: torch.device | str | None = None) -> Tensor:
    """The cell of each pixel of a side, `[side]` int64: cell i begins at pixel floor(i * side / cells).

    Raises:
        ValueError: more cells than pixels.
    """
    if cells > side:
        raise ValueError(f"a grid of {cells} cells does not fit a side of {side} pixels: choose fewer")
    return ((torch.arange(side, device=device) + 1) * cells - 1) // side


def chosen_cells(share: Tensor, uniform: Tensor, *, law: str = "count") -> Tensor:
    """Cells that come from the source, at random places.

    Args:
        share: `[n]` wished share of the cells.
        uniform: `[n, rows, columns]` in [0, 1).
        law: `count`, as many as make up the share, rounded; `bernoulli`, each cell with the share as its chance.

    Returns:
        `[n, rows, columns]` bool.
    """
    if law == "bernoulli":
        return uniform < share[:, None, None]
    flat = uniform.flatten(1)
    count = (share.double() * flat.shape[1]).round()
    rank = flat.argsort(dim=1).argsort(dim=1)
    return (rank < count[:, None]).view_as(uniform)


def cells_to_mask(cells: Tensor, size: tuple[int, int]) -> Tensor:
    """Cells `[B, rows, columns]` as pixels `[B, H, W]`."""
    rows, columns = cells.shape[1:]
    row = cell_numbers(size[0], rows, cells.device)
    column = cell_numbers(size[1], columns, cells.device)
    return cells[:, row][:, :, column]


def cell_means(tokens: Tensor, cells: tuple[int, int], *, image_size: tuple[int, int]) -> Tensor:
    """The mean of what lies in each cell; a token that several share counts in each by its pixels there.

    Args:
        tokens: `[B, gh, gw, D]`, one per patch of the image.
        cells: rows and columns of cells.
        image_size: height and width in pixels, whole patches.

    Returns:
        `[B, rows, columns, D]`.
    """
    rows, columns = (
        _shares(side, count, patches, tokens)
        for side, count, patches in zip(image_size, cells, tokens.shape[1:3], strict=True)
    )
    return torch.einsum("ig,jw,bgwd->bijd", rows, columns, tokens)


def _shares(side: int, cells: int, patches: int, like: Tensor) -> Tensor:
    """Each patch's share of each cell along one side, `[cells, patches]`, rows sum to 1."""
    number = cell_numbers(side, cells, like.device)
    inside = number == torch.arange(cells, device=like.device)[:, None]
    pixels = inside.view(cells, patches, side // patches).sum(dim=2).to(like.dtype)
    return pixels / pixels.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class PasteCells:
    """GridMix: cells of the partner in place.

    Attributes:
        source_index: `[B]` int64.
        cells: `[B, rows, columns]` bool, True = the cell comes from the source.
    """

    source_index: Tensor
    cells: Tensor

    kind: ClassVar[str] = "paste"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> every cell from one of two images; source weight = exact pixel share."""
        index = self.source_index.to(images.device, non_blocking=True)
        cells = self.cells.to(images.device, non_blocking=True)
        mask = cells_to_mask(cells, (images.shape[-2], images.shape[-1]))
        return MixedBatch(
            images=torch.where(mask[:, None], images[index], images),
            source_index=index,
            source_weight=mask.float().mean(dim=(1, 2)),
            source_mask=mask,
            draw=self,
        )
