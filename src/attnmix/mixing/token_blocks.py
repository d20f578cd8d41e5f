"""TokenMix's masks: many blocks of tokens, or single ones, anywhere on the grid (Liu et al., ECCV 2022)."""

import math

import numpy as np
import torch
from torch import Tensor

# tries for a block that fits and covers something new
ATTEMPTS = 10


def block_mask(
    source_share: float,
    *,
    grid: tuple[int, int],
    min_block: float,
    min_aspect: float,
    generator: torch.Generator,
) -> Tensor:
    """Blocks of tokens, one after the other, until the wished share is covered (as BEiT draws its masks).

    A block's area is uniform between the smallest one and what is left to cover, its aspect ratio log-uniform,
    its place uniform. One that covers nothing new, or more than is left, is drawn again; if that fails ten times
    the rest stays uncovered, so that a mask is rarely a few tokens too small and never too large.

    Args:
        source_share: wished share of the source, in [0, 1]; at least one token is asked for.
        grid: rows and columns of tokens.
        min_block: area of the smallest block as a share of the grid; the last blocks may be smaller.
        min_aspect: least height over width, and width over height, in (0, 1].
        generator: of all draws, on the CPU.

    Returns:
        `[gh, gw]` bool, True = source token.
    """
    rows, columns = grid
    mask = np.zeros(grid, dtype=bool)
    left = _count(source_share, rows * columns)
    smallest = min_block * rows * columns
    while left > 0:
        new = 0
        for area, aspect, top, column in torch.rand(ATTEMPTS, 4, generator=generator).tolist():
            least = min(smallest, left)
            size = max(least + area * (left - least), 1.0)
            ratio = min_aspect ** (1 - 2 * aspect)
            height, width = (max(round(math.sqrt(size * by)), 1) for by in (ratio, 1 / ratio))
            if height > rows or width > columns:
                continue
            first, start = int(top * (rows - height + 1)), int(column * (columns - width + 1))
            block = mask[first : first + height, start : start + width]
            covers = height * width - int(block.sum())
            if 0 < covers <= left:
                block[:] = True
                new = covers
                break
        if new == 0:
            break
        left -= new
    return torch.from_numpy(mask)


def scattered_mask(source_share: float, *, grid: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Single tokens anywhere, all alike: `[gh, gw]` bool, True = source token; arguments as `block_mask`'s."""
    count = grid[0] * grid[1]
    return (torch.randperm(count, generator=generator) < _count(source_share, count)).unflatten(0, grid)


def _count(source_share: float, tokens: int) -> int:
    return min(max(round(source_share * tokens), 1), tokens)
