"""Masks made of cells of whole patches."""

import math

from torch import Tensor


def cell_counts(image_size: tuple[int, int], cell: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of cells that cover an image, all in pixels; the last of each may be cut off."""
    return math.ceil(image_size[0] / cell[0]), math.ceil(image_size[1] / cell[1])


def whole_cells(source_share: Tensor, cells: int) -> Tensor:
    """A share of the image in whole cells: `[B]` in [0, 1] -> `[B]`.

    The target keeps the cell that would be divided, as in MixPro's code.
    """
    return (source_share.double() * cells).floor() / cells


def cells_to_pixels(cells: Tensor, cell: tuple[int, int], image_size: tuple[int, int]) -> Tensor:
    """Cells `[B, rows, columns]` of `cell` = (height, width) pixels, cut to the image: `[B, H, W]`."""
    pixels = cells.repeat_interleave(cell[0], dim=1).repeat_interleave(cell[1], dim=2)
    return pixels[:, : image_size[0], : image_size[1]]


def top_cells(scores: Tensor, counts: Tensor) -> Tensor:
    """The best cells of each row: `[B, N]`, how many of each `[B]` -> `[B, N]` bool; the first ones on ties."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    # no topk: it wants one count for all rows, and leaves ties to the device
    return order.argsort(dim=1) < counts[:, None]
