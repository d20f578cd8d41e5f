"""Puzzle Mix (Kim, Choo, Song, ICML 2020): the mask that keeps most saliency, cut from a graph of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.input_saliency import input_saliency, pixel_scale
from attnmix.methods.pasting import Pasting
from attnmix.mixing import Draw, PasteMask
from attnmix.mixing.block_masks import (
    Array,
    block_grid,
    block_saliency,
    border_costs,
    cheapest_levels,
    check_maxflow,
    checked_blocks,
    checked_levels,
    drawn_blocks,
    equal_parts,
    split_pair_costs,
    spread_blocks,
)
from attnmix.mixing.block_transport import PasteBlocks, transport_in_chunks
from attnmix.mixing.whole_numbers import is_whole

DISTANCE_WEIGHT = 0.8
_TINY = 1e-8  # the authors' code: keeps the logarithm of an impossible level finite


def prior_costs(source_share: Array, top: int) -> Array:
    """-log p of every level under the binomial prior: p(z = l / m) = C(m, l) q^l (1 - q)^(m - l) (section 3).

    Args:
        source_share: `[n]`, q, the drawn share of the source.
        top: m.

    Returns:
        `[n, m + 1]`.
    """
    level = np.arange(top + 1)
    chances = np.array([math.comb(top, int(each)) for each in level])
    q = source_share[:, None].astype(np.float64)
    return -np.log(chances * q**level * (1 - q) ** (top - level) + _TINY)


def optimal_levels(
    lost: Tensor, below: Tensor, right: Tensor, source_share: Tensor, *, top: int, beta: float, eta: float
) -> Tensor:
    """The mask of least cost in each image (the main objective of section 3, for the mask).

    Minimises sum z_k lost_k + sum (beta + w) (z_k - z_l)^2 - eta mean log p(z_k). The one part on the CPU: what
    is known of the blocks goes down in one copy, and the levels come back in one.

    Args:
        lost: `[B, r, c]`, what a block costs more as the source's than as the target's.
        below: `[B, r - 1, c]`, w of a block and the one below it.
        right: `[B, r, c - 1]`, w of a block and the one right of it.
        source_share: `[B]` on the CPU, the drawn share of the source.
        top: m, the highest level.
        beta: smoothness of the mask; beta + w is taken as 0 where it is below, else nothing could be cut.
        eta: of the prior.

    Returns:
        `[B, r, c]` uint8, levels in 0 .. m, on the device of `lost`.
    """
    grid = lost.shape[1:]
    packed = torch.cat([part.flatten(1) for part in (lost, below, right)], dim=1).cpu().numpy()
    ends = np.cumsum([part[0].numel() for part in (lost, below)])
    single, vertical, horizontal = np.split(packed.astype(np.float64), ends, axis=1)
    share = np.arange(top + 1)[:, None, None] / top
    unary = share * single.reshape(-1, 1, *grid)
    unary = unary + eta / math.prod(grid) * prior_costs(source_share.numpy(), top)[:, :, None, None]
    levels = cheapest_levels(
        unary,
        np.maximum(beta + vertical.reshape(below.shape), 0),
        np.maximum(beta + horizontal.reshape(right.shape), 0),
    )
    return torch.from_numpy(levels.astype(np.uint8)).to(lost.device, non_blocking=True)


class PuzzleMix(Pasting):
    """Puzzle Mix (Kim, Choo, Song, ICML 2020): a mask that keeps what is salient in both, and blocks that move.

    One more forward of the unmixed batch, in evaluation mode, and its backward pass to the pixels alone give each
    pixel's saliency. On a grid of blocks, a mask of the `levels` 0, 1/m .. 1 is found that keeps the most of both
    images' saliency, is smooth, cuts where the pixels on both sides match, and follows the drawn share of the
    source (the main objective). Then each image's blocks move to where the mask shows them, as far as the
    saliency won is worth the distance (Algorithm 1); moved blocks are the reason why `area` is the only exact
    label. An image that is its own partner stays itself.

    The mask is the exact optimum (a minimum cut), where the authors' alpha-beta swap finds a good one. Saliency
    is that of the smoothed labels. With `levels=2`, `transport=False` and all of beta and eta 0 each block is of
    the more salient image. Left out: the adversarial variant (`adv_p`) and the authors' further loss on the
    unmixed batch (`clean_lam`, 0 on CIFAR-100 and 1 on ImageNet). The graphs are cut on the CPU: the step waits
    for the device once.

    Args:
        blocks: how many blocks a side has, or several of which each step draws one (the authors' 2, 4, 8 or 16);
            of a side that it does not divide, the next smaller number that does.
        levels: of the mask: 2 is hard, 3 (the paper) knows halves. The graph, and with it the time on the CPU,
            grows with their square.
        beta: smoothness of the mask (1.2; ImageNet 1.5), divided by 16 times the blocks of a side.
        gamma: smoothness of the pixels, relative to beta.
        eta: how far the mask follows the drawn share of the source.
        neighbourhood: side, in pixels, of the squares whose means are compared across a border of blocks.
        transport: whether blocks move.
        distance_weight: xi, the cost of moving a block by a whole side; above 0 (paper: 0.8).
        transport_size: side in pixels of the blocks that move, where those of the mask are larger; None: those
            of the mask. The authors' 4 is for the 32-pixel images of CIFAR-100: costs 2B (HW / size^2)^2 numbers,
            held in chunks of at most 64 MiB, or of one image's.
        options: as `Pasting`'s; `cutmix_alpha` is that of the prior's share.

    Raises:
        ValueError: a value outside its range, naming it; PyMaxflow is missing.
    """

    about = About(
        paper="Kim, Choo, Song, ICML 2020",
        images="the mask that keeps most saliency; blocks move",
        labels="by area",
        forwards=1,
        backwards=1,
        more="a graph cut on the CPU",
        needs=("the package PyMaxflow",),
    )
    moves_content = True

    def __init__(
        self,
        *,
        blocks: int | Sequence[int] = (2, 4, 8, 16),
        levels: int = 3,
        beta: float = 1.2,
        gamma: float = 0.5,
        eta: float = 0.2,
        neighbourhood: int = 4,
        transport: bool = True,
        distance_weight: float = DISTANCE_WEIGHT,
        transport_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.blocks = checked_blocks(blocks)
        for name, value in (("beta", beta), ("gamma", gamma), ("eta", eta)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}, but a cost has a finite weight, at least 0")
        if not (distance_weight > 0 and math.isfinite(distance_weight)):
            raise ValueError(f"distance_weight is {distance_weight}, but moving a block must cost: above 0")
        sizes = {"neighbourhood": neighbourhood}
        if transport_size is not None:
            sizes["transport_size"] = transport_size
        for name, size in sizes.items():
            if not (is_whole(size) and size >= 1):
                raise ValueError(f"{name} is {size!r}, but must be a whole number of pixels, at least 1")
        if not transport and transport_size is not None:
            raise ValueError(f"transport_size is {transport_size}, but nothing moves with transport=False")
        if not transport and distance_weight != DISTANCE_WEIGHT:
            raise ValueError(f"distance_weight is {distance_weight}, but nothing moves with transport=False")
        self.top = checked_levels(levels) - 1
        self.beta = beta
        self.gamma = gamma
        self.eta = eta
        self.neighbourhood = neighbourhood
        self.transport = transport
        self.distance_weight = distance_weight
        self.transport_size = transport_size

    def bind(self, view: BackboneView) -> None:
        """Needs PyMaxflow."""
        super().bind(view)
        check_maxflow("puzzlemix")

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """Find the mask, and how blocks move under it."""
        size = images.shape[-2], images.shape[-1]
        partners, source_share = self.partners(images), self.pasted_shares(images)
        grid = block_grid(size, drawn_blocks(self.blocks, self.kinds))
        pixels = input_saliency(view, images, self.targets(labels))
        with torch.no_grad():
            saliency = block_saliency(pixels, grid)
            beta = self.beta / (16 * math.sqrt(math.prod(grid)))  # as the authors' code
            seen = images.float() * pixel_scale(view, images)
            borders = border_costs(seen, seen[partners], grid=grid, neighbourhood=self.neighbourhood)
            extra, below, right = (beta * self.gamma * part for part in split_pair_costs(*borders))
            lost = saliency - saliency[partners] + extra
            levels = optimal_levels(lost, below, right, source_share, top=self.top, beta=beta, eta=self.eta)
            mask = spread_blocks(levels.bool() if self.top == 1 else levels / self.top, size)
            if not self.transport:
                return PasteMask(partners, mask)
            return self._moved(partners, mask, levels, pixels)

    def _moved(self, partners: Tensor, mask: Tensor, levels: Tensor, pixels: Tensor) -> PasteBlocks:
        """Algorithm 1 for both images of every pair at once."""
        batch, grid = len(levels), (levels.shape[1], levels.shape[2])
        if self.transport_size is not None:
            block = mask.shape[1] // grid[0], mask.shape[2] // grid[1]
            grid = tuple(  # type: ignore[assignment]
                number * equal_parts(side, max(side // self.transport_size, 1))
                for number, side in zip(grid, block, strict=True)
            )
        levels = spread_blocks(levels, grid)
        saliency = block_saliency(pixels, grid)
        places = transport_in_chunks(
            torch.cat([saliency, saliency[partners]]),
            torch.cat([levels < self.top, levels > 0]),
            distance_weight=self.distance_weight,
            # as many as a side has blocks, as the authors' code: to ask for convergence is to wait
            rounds=max(grid),
        )
        own = partners == torch.arange(batch, device=partners.device)
        stay = torch.arange(places.shape[1], device=places.device)
        places = torch.where(own.repeat(2)[:, None], stay, places)
        return PasteBlocks(partners, mask, places[:batch], places[batch:], grid)
