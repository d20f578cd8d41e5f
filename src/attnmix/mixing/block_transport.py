"""Blocks that move within their image to where a mask shows them (Puzzle Mix)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attnmix.mixing.mixed import MixedBatch

# Numbers of costs [n, P, P] held at once: 64 MiB in float32.
CHUNK_ELEMENTS = 2**24
_TAKEN = 1e4  # more than any move costs


def move_costs(saliency: Tensor, shown: Tensor, *, distance_weight: float) -> Tensor:
    """What it costs to move each block to each place: distance, less the saliency that is shown there.

    xi C - s z^T of Puzzle Mix's transport, C the squared distance, 1 for the length of a side.

    Args:
        saliency: `[n, r, c]`, sum 1.
        shown: `[n, r, c]` bool, True = the mask shows this image there.
        distance_weight: xi.

    Returns:
        `[n, r * c, r * c]` float32, blocks by places.
    """
    rows, columns = saliency.shape[1:]
    at = torch.arange(rows * columns, device=saliency.device)
    row, column = at // columns, at % columns
    squared = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
    distance = squared / max(rows - 1, columns - 1, 1) ** 2
    gain = saliency.flatten(1)[:, :, None] * shown.flatten(1)[:, None, :]
    return torch.sub(distance_weight * distance, gain, out=gain)


def masked_transport(cost: Tensor, *, rounds: int) -> Tensor:
    """Who goes where, by Puzzle Mix's Algorithm 1: all choose their best place, the cheapest stays, others go on.

    A block that is shown where it is chooses its own place first, so that every place shown is filled from the
    first round on; a place that is not shown may be left over, and keeps its own block.

    Args:
        cost: `[n, P, P]`, blocks by places; finite. It is used up: what is lost is written into it.
        rounds: how often the losers choose again; the paper goes on until nobody loses.

    Returns:
        `[n, P]` int64, the block that comes to each place. Ties go to the first.
    """
    index = torch.arange(cost.shape[1], device=cost.device).expand(cost.shape[:2])
    nobody = cost.shape[1]
    holder = wish = index
    lost = torch.ones_like(index, dtype=torch.bool)
    for _ in range(rounds):
        if cost.device.type == "cpu":  # who did not lose wishes what it did: to see that is no wait here
            if not lost.any():
                break
            wish = wish.masked_scatter(lost, cost[lost].argmin(dim=1))
        else:
            wish = cost.argmin(dim=2)
        bid = cost.gather(2, wish[:, :, None])[:, :, 0]
        best = torch.full_like(bid, torch.inf).scatter_reduce(1, wish, bid, "amin")
        bidder = torch.where(bid == best.gather(1, wish), index, nobody)
        holder = torch.full_like(index, nobody).scatter_reduce(1, wish, bidder, "amin")
        lost = holder.gather(1, wish) != index
        cost.scatter_add_(2, wish[:, :, None], (lost * _TAKEN).to(cost.dtype)[:, :, None])
    return torch.where(holder == nobody, index, holder)


def transport_in_chunks(saliency: Tensor, shown: Tensor, *, distance_weight: float, rounds: int) -> Tensor:
    """`masked_transport` by `move_costs`, of so many images at a time that their costs take 64 MiB at most.

    One image's are held together, however many.

    Args:
        saliency: `[n, r, c]`, sum 1.
        shown: `[n, r, c]` bool, True = the mask shows this image there.
        distance_weight: xi.
        rounds: how often the losers choose again.

    Returns:
        `[n, r * c]` int64, the block that comes to each place.
    """
    step = max(1, CHUNK_ELEMENTS // saliency[0].numel() ** 2)
    chunks = zip(saliency.split(step), shown.split(step), strict=True)
    return torch.cat(
        [masked_transport(move_costs(*chunk, distance_weight=distance_weight), rounds=rounds) for chunk in chunks]
    )


@dataclass(frozen=True)
class PasteBlocks:
    """A mask over two images whose blocks have moved.

    Attributes:
        source_index: `[B]` int64.
        mask: `[B, H, W]`; bool, True = source pixel, or float in [0, 1], the source's share of the pixel.
        target_from: `[B, r * c]` int64, the block of the target that comes to each place.
        source_from: `[B, r * c]` int64, the same of the source.
        grid: r rows and c columns of blocks.
    """

    source_index: Tensor
    mask: Tensor
    target_from: Tensor
    source_from: Tensor
    grid: tuple[int, int]

    kind: ClassVar[str] = "paste"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> pixels of one of two moved images, of both by a soft mask."""
        own = torch.arange(len(images), device=images.device)
        index = self.source_index.to(images.device, non_blocking=True)
        target = take_blocks(images, own, self.target_from.to(images.device, non_blocking=True), self.grid)
        source = take_blocks(images, index, self.source_from.to(images.device, non_blocking=True), self.grid)
        mask = self.mask.to(images.device, non_blocking=True)
        hard = mask.dtype == torch.bool
        if hard:
            mixed = torch.where(mask[:, None], source, target)
        else:
            mixed = torch.lerp(target, source, mask[:, None].to(images.dtype))
        share = mask.float()
        return MixedBatch(
            images=mixed,
            source_index=index,
            source_weight=share.mean(dim=(1, 2)),
            source_mask=mask if hard else None,
            draw=self,
            source_share=None if hard else share,
        )


def take_blocks(images: Tensor, index: Tensor, places: Tensor, grid: tuple[int, int]) -> Tensor:
    """Of image `index` `[B]` the blocks `places` `[B, r * c]`, put in each place: `[B, C, H, W]`, twice."""
    rows, columns = grid
    blocks = images.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))  # [B, C, r, h, c, w]
    blocks = blocks.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)[index[:, None], places]  # [B, r * c, C, h, w]
    return blocks.unflatten(1, grid).permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
