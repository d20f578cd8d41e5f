"""Patches of images: in which order they go, what is left without them, what comes of them in other places."""

import torch
from torch import Tensor

from attnmix.evaluation.exam import image_generator


def piece_size(image_size: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """Height and width in pixels of each piece of an image cut into rows and columns.

    Raises:
        ValueError: a side that holds no whole number of pixels per piece.
    """
    (height, width), (rows, columns) = image_size, grid
    if height % rows or width % columns:
        raise ValueError(
            f"a grid of {rows}x{columns} does not divide images of {height}x{width} pixels: "
            "each side must be a multiple of its number of pieces"
        )
    return height // rows, width // columns


def drop_patches(pixels: Tensor, dropped: Tensor, *, grid: tuple[int, int]) -> Tensor:
    """Images with whole patches black, 0 in pixel space (Naseer et al. 2021).

    Args:
        pixels: `[B, C, H, W]`, 0 black to 1 white.
        dropped: `[B, N]` bool over the grid, row by row, True = dropped.
        grid: rows and columns of patches.

    Raises:
        ValueError: a grid that does not divide the image, or is not the mask's.
    """
    height, width = piece_size((pixels.shape[2], pixels.shape[3]), grid)
    if dropped.shape[1] != grid[0] * grid[1]:
        raise ValueError(f"a mask of {dropped.shape[1]} patches for a grid of {grid[0]}x{grid[1]}")
    black = dropped.unflatten(1, grid).repeat_interleave(height, 1).repeat_interleave(width, 2)
    return pixels.masked_fill(black[:, None], 0.0)


def patch_order(saliency: Tensor) -> Tensor:
    """Patches from the most to the least salient: `[B, N]` -> `[B, N]` int64; equal ones keep their order."""
    return saliency.argsort(dim=1, descending=True, stable=True)


def first_patches(order: Tensor, count: int) -> Tensor:
    """The mask `[B, N]`, True for the `count` patches that come first in each image's order `[B, N]`."""
    return torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, :count], True)


def random_orders(index: Tensor, count: int, *, seed: int) -> Tensor:
    """An order of `count` pieces for each image, drawn for it alone: `[B, count]` int64 on the CPU.

    Args:
        index: `[B]`, the images' numbers in their set.
        count: pieces; another number is another draw.
        seed: the exam's.
    """
    generators = [image_generator(seed, number, stream=count) for number in index.tolist()]
    return torch.stack([torch.randperm(count, generator=generator) for generator in generators])


def shuffle_patches(images: Tensor, permutation: Tensor, *, pieces: int) -> Tensor:
    """Images cut into `pieces` x `pieces` blocks, which change places (Naseer et al. 2021).

    Args:
        images: `[B, C, H, W]`.
        permutation: `[B, pieces * pieces]` int64, row by row: which block comes to each place.
        pieces: blocks per side.

    Raises:
        ValueError: sides that are no multiples of `pieces`, or a permutation of another number of blocks.
    """
    height, width = piece_size((images.shape[2], images.shape[3]), (pieces, pieces))
    if permutation.shape[1] != pieces**2:
        raise ValueError(f"a permutation of {permutation.shape[1]} blocks for {pieces}x{pieces} pieces")
    blocks = images.unflatten(3, (pieces, width)).unflatten(2, (pieces, height))  # [B, C, g, h, g, w]
    blocks = blocks.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [B, g * g, C, h, w]
    moved = blocks[torch.arange(len(blocks), device=blocks.device)[:, None], permutation]
    return moved.unflatten(1, (pieces, pieces)).permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
