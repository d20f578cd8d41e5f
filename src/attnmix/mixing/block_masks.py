"""Masks on a grid of blocks: saliency of a block, what a mask costs, and the cheapest one by a graph cut.

What the CPU does is in NumPy. A level is a whole number l in 0 .. m; the source's share of a block is z = l / m.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.mixing.whole_numbers import is_whole

Grid = tuple[int, int]
Array = np.ndarray[Any, Any]


def check_maxflow(reader: str) -> None:
    """Raise ValueError, saying what to install, unless PyMaxflow is there."""
    try:
        import maxflow  # noqa: F401
    except ImportError as error:
        raise ValueError(f'{reader} cuts graphs by PyMaxflow: pip install "attnmix[puzzlemix]"') from error


def checked_blocks(blocks: int | Sequence[int]) -> tuple[int, ...]:
    """How many blocks a side may have, as a tuple; ValueError unless each is a whole number, at least 2."""
    numbers = tuple(blocks) if isinstance(blocks, Iterable) else (blocks,)
    if not numbers or not all(is_whole(number) and number >= 2 for number in numbers):
        raise ValueError(
            f"blocks is {blocks}, but must be a whole number of blocks of a side, or several, at least 2"
        )
    return numbers


def checked_levels(levels: int) -> int:
    """How many levels a mask has; ValueError unless a whole number, 2 to 9."""
    if not (is_whole(levels) and 2 <= levels <= 9):
        raise ValueError(
            f"levels is {levels!r}, but a mask has 2 (hard) to 9, a whole number: the cut grows with their square"
        )
    return levels


def drawn_blocks(blocks: tuple[int, ...], generator: torch.Generator) -> int:
    """One of these numbers, each as likely; nothing is drawn where there is one."""
    if len(blocks) == 1:
        return blocks[0]
    return blocks[int(torch.randint(len(blocks), (), generator=generator))]


def equal_parts(length: int, wished: int) -> int:
    """The largest number of equal parts, at most the wished one, that a side of so many pixels has."""
    return next(parts for parts in range(min(wished, length), 0, -1) if length % parts == 0)


def block_grid(image_size: Grid, blocks: int) -> Grid:
    """Rows and columns of equal blocks: as many as wished, or the next fewer that divide the side."""
    return equal_parts(image_size[0], blocks), equal_parts(image_size[1], blocks)


def block_saliency(saliency: Tensor, grid: Grid) -> Tensor:
    """Each block's share of an image's saliency: `[B, H, W]` -> `[B, r, c]`, sum 1.

    Even in all blocks where the saliency is 0 everywhere, or not finite.
    """
    blocks = saliency.unflatten(2, (grid[1], -1)).unflatten(1, (grid[0], -1)).sum(dim=(2, 4))
    total = blocks.sum(dim=(1, 2), keepdim=True)
    return torch.where((total > 0) & total.isfinite(), blocks / total, 1 / (grid[0] * grid[1]))


def spread_blocks(blocks: Tensor, image_size: Grid) -> Tensor:
    """A value per block as one per pixel: `[B, r, c]` -> `[B, H, W]`."""
    rows, columns = blocks.shape[1:]
    tall = blocks.repeat_interleave(image_size[0] // rows, dim=1)
    return tall.repeat_interleave(image_size[1] // columns, dim=2)


# ---- Puzzle Mix: smoothness of what is next to each other


def border_costs(target: Tensor, source: Tensor, *, grid: Grid, neighbourhood: int) -> tuple[Tensor, Tensor]:
    """How far pixels are apart across each border of two blocks, whoever's they are (Puzzle Mix, phi).

    Mean absolute difference over channels and along the border, of pixels averaged over squares.

    Args:
        target: `[B, C, H, W]`.
        source: `[B, C, H, W]`, the partners.
        grid: rows and columns of blocks.
        neighbourhood: side of the squares in pixels, or the next smaller that divides a block's side.

    Returns:
        Of a block and the one below it `[B, 2, 2, r - 1, c]`, and of a block and the one right of it
        `[B, 2, 2, r, c - 1]`; first whose the block is, then whose its neighbour; 0 = target, 1 = source.
    """
    block = target.shape[-2] // grid[0], target.shape[-1] // grid[1]
    square = _divisor(block[0], neighbourhood), _divisor(block[1], neighbourhood)
    per_block = block[0] // square[0], block[1] // square[1]
    images = [F.avg_pool2d(each.float(), square) for each in (target, source)]
    below = _border_costs(images, per_block)
    right = _border_costs([each.transpose(2, 3) for each in images], per_block[::-1]).transpose(3, 4)
    return below, right


def _border_costs(images: list[Tensor], per_block: Grid) -> Tensor:
    step, along = per_block
    last = [each[:, :, step - 1 : -1 : step] for each in images]
    first = [each[:, :, step::step] for each in images]
    costs = [[(one - two).abs().mean(dim=1) for two in first] for one in last]
    table = torch.stack([torch.stack(row, dim=1) for row in costs], dim=1)
    # a pixel that is not finite says nothing of a border
    return table.unflatten(-1, (-1, along)).mean(dim=-1).nan_to_num(0, 0, 0)


def _divisor(length: int, wished: int) -> int:
    return length // next(parts for parts in range(-(-length // wished), length + 1) if length % parts == 0)


def split_pair_costs(below: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Costs of pairs as costs of single blocks, and of a difference (z_k - z_l)^2 between neighbours.

    phi(a, b) = u(a) + v(b) + w (a - b)^2 + a constant, for a and b in {0, 1}; by it phi is extended to soft masks.

    Args:
        below: `[B, 2, 2, r - 1, c]`, as `border_costs`'.
        right: `[B, 2, 2, r, c - 1]`.

    Returns:
        What the source costs more than the target in each block `[B, r, c]`, and w of both kinds of border,
        `[B, r - 1, c]` and `[B, r, c - 1]`.
    """
    weights, extra = [], []
    for pairs, pad in ((below, (0, 0, 0, 1)), (right, (0, 1, 0, 0))):
        unmixed, mixed = (pairs[:, 0, 0], pairs[:, 1, 1]), (pairs[:, 0, 1], pairs[:, 1, 0])
        weights.append((mixed[0] + mixed[1] - unmixed[0] - unmixed[1]) / 2)
        first = (mixed[1] + unmixed[1] - mixed[0] - unmixed[0]) / 2  # u(1) - u(0)
        second = (mixed[0] + unmixed[1] - mixed[1] - unmixed[0]) / 2  # v(1) - v(0)
        extra += [F.pad(first, pad), F.pad(second, (pad[1], pad[0], pad[3], pad[2]))]
    return torch.stack(extra).sum(dim=0), weights[0], weights[1]


# ---- the cheapest mask


def level_energy(levels: Array, unary: Array, below: Array, right: Array) -> Array:
    """What masks cost: sum of unary[l_k] over the blocks, plus w (z_k - z_l)^2 over the borders.

    Args:
        levels: `[n, r, c]` whole numbers in 0 .. m.
        unary: `[n, m + 1, r, c]`, what each level costs in each block.
        below: `[n, r - 1, c]`, w of a block and the one below it.
        right: `[n, r, c - 1]`, w of a block and the one right of it.

    Returns:
        `[n]` float64.
    """
    share = levels / (unary.shape[1] - 1)
    single = np.take_along_axis(unary, levels[:, None].astype(np.int64), axis=1).sum(axis=(1, 2, 3))
    vertical = (below * np.diff(share, axis=1) ** 2).sum(axis=(1, 2))
    return single + vertical + (right * np.diff(share, axis=2) ** 2).sum(axis=(1, 2))


def cheapest_levels(unary: Array, below: Array, right: Array) -> Array:
    """The masks of least `level_energy`, exactly, all by one minimum cut. Arguments as there, w at least 0.

    Level l is m yes-or-no nodes, of which the first l say yes (Ishikawa, 2003). Then (l - k)^2 is the number of
    differing pairs of nodes plus l(l - m) + k(k - m), so that squares too are cut exactly, which the authors'
    alpha-beta swap does not promise.

    Returns:
        `[n, r, c]` int64.
    """
    import maxflow

    count, levels, rows, columns = unary.shape
    top = levels - 1
    below, right = below.astype(np.float64) / top**2, right.astype(np.float64) / top**2
    around = np.zeros((count, rows, columns))
    around[:, :-1] += below
    around[:, 1:] += below
    around[:, :, :-1] += right
    around[:, :, 1:] += right
    slope = (2 * np.arange(top) + 1 - top)[:, None, None]  # of l(l - m), from l to l + 1
    cost = np.diff(unary.astype(np.float64), axis=1) + slope * around[:, None]

    nodes = np.arange(cost.size).reshape(cost.shape)  # [n, m, r, c]
    graph = maxflow.Graph[float](cost.size, 4 * cost.size * top)
    graph.add_nodes(cost.size)
    graph.add_grid_tedges(nodes, np.maximum(cost, 0), np.maximum(-cost, 0))
    _join(graph, nodes[:, :, None, :-1], nodes[:, None, :, 1:], below[:, None, None])
    _join(graph, nodes[:, :, None, :, :-1], nodes[:, None, :, :, 1:], right[:, None, None])
    if top > 1:  # a node that says yes after one that says no costs more than all else
        forbidden = 1 + np.abs(cost).sum(axis=(1, 2, 3)) + top**2 * (below.sum() + right.sum())
        inner = np.broadcast_to(forbidden[:, None, None, None], nodes[:, 1:].shape)
        graph.add_edges(nodes[:, :-1].ravel(), nodes[:, 1:].ravel(), inner.ravel(), np.zeros(inner.size))
    graph.maxflow()
    return graph.get_grid_segments(nodes).sum(axis=1)


def _join(graph: Any, first: Array, second: Array, weight: Array) -> None:
    """Edges both ways between every node of a block and every node of its neighbour."""
    first, second, weight = np.broadcast_arrays(first, second, weight)
    graph.add_edges(first.ravel(), second.ravel(), weight.ravel(), weight.ravel())
