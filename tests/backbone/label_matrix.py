"""TL-Align with whole label matrices `[B, M, C]`, in loops over explicit softmax matrices of unfused models.

Written from the models' descriptions and sharing no code with the package.
"""

import math

import torch
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from tests.attention.reference import hooked_attention


def softmax_matrices(model: nn.Module, batch: Tensor) -> list[Tensor]:
    """Head mean of every attention call of an unfused model, `[B', M_query, M_key]`, by hooks."""
    if not hasattr(model, "config"):
        return [matrix.float().mean(dim=1) for matrix in hooked_attention(model, batch)]
    found: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, args, output: found.append(output[1].mean(dim=1)))
        for module in model.modules()
        if type(module).__name__ in ("ViTAttention", "DeiTAttention", "Dinov2Attention", "SwinAttention")
    ]
    with torch.no_grad():
        model(batch)
    for hook in hooks:
        hook.remove()
    return found


def step(labels: Tensor, matrix: Tensor, keys: Tensor | None = None) -> Tensor:
    """`(label + P label) / 2`, one token at a time."""
    keys = labels if keys is None else keys
    after = labels.clone()
    for image in range(len(labels)):
        for query in range(labels.shape[1]):
            attended = sum(matrix[image, query, key] * keys[image, key] for key in range(keys.shape[1]))
            after[image, query] = (labels[image, query] + attended) / 2
    return after


def joined(labels: Tensor, area_label: Tensor, count: int) -> Tensor:
    """`count` tokens with the area's label in front."""
    return torch.cat([area_label[:, None]] * count + [labels], dim=1) if count else labels


def mean_of_cells(labels: Tensor, grid: tuple[int, int], cells: list[list[list[tuple[int, int]]]]) -> Tensor:
    """Mean label of each cell, which lists (row, column) of tokens; cells row by row."""
    rows = []
    for row in cells:
        for cell in row:
            assert all(r < grid[0] and c < grid[1] for r, c in cell)
            rows.append(sum(labels[:, r * grid[1] + c] for r, c in cell) / len(cell))
    return torch.stack(rows, dim=1)


def convolution_cells(
    grid: tuple[int, int], kernel: int, stride: int, padding: int, *, complete: bool = False
) -> list[list[list[tuple[int, int]]]]:
    """The tokens that each output of a convolution reads; `complete` keeps a last cell that is cut."""
    count = [
        math.ceil(side / stride) if complete else (side + 2 * padding - kernel) // stride + 1 for side in grid
    ]
    return [
        [
            [
                (r, c)
                for r in range(i * stride - padding, i * stride - padding + kernel)
                for c in range(j * stride - padding, j * stride - padding + kernel)
                if 0 <= r < grid[0] and 0 <= c < grid[1]
            ]
            for j in range(count[1])
        ]
        for i in range(count[0])
    ]


def global_matrix(
    matrix: Tensor, grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int], *, pads_first: bool
) -> Tensor:
    """Window attention `[B * windows, area, area]` as one matrix over all tokens, `[B, N, N]`.

    Padded keys are left out, and rows scaled to sum to 1.
    """
    padded = [math.ceil(side / w) * w for side, w in zip(grid, window, strict=True)]
    across = padded[1] // window[1]
    windows = (padded[0] // window[0]) * across
    around = padded if pads_first else grid
    place = {}
    for r in range(grid[0]):
        for c in range(grid[1]):
            y, x = (r - shift[0]) % around[0], (c - shift[1]) % around[1]
            number = (y // window[0]) * across + x // window[1]
            place[r, c] = number, (y % window[0]) * window[1] + x % window[1]
    tokens = list(place)
    batch = len(matrix) // windows
    whole = torch.zeros(batch, len(tokens), len(tokens))
    for image in range(batch):
        for i, query in enumerate(tokens):
            for j, key in enumerate(tokens):
                if place[query][0] == place[key][0]:
                    row = matrix[image * windows + place[query][0], place[query][1]]
                    whole[image, i, j] = row[place[key][1]]
    return whole / whole.sum(dim=2, keepdim=True)


def swin_windows(block: nn.Module) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """Window, shift and whether padding comes first."""
    if isinstance(block, SwinTransformerBlock):
        return block.window_size, block.shift_size, False
    return (block.window_size,) * 2, (block.shift_size,) * 2, True


def swin_labels(
    labels: Tensor, matrices: list[Tensor], grid: tuple[int, int], stages: list[list[nn.Module]]
) -> Tensor:
    """Through all stages of timm's or transformers' Swin."""
    left = iter(matrices)
    for number, blocks in enumerate(stages):
        if number:
            cells = convolution_cells(grid, 2, 2, 0, complete=True)
            labels = mean_of_cells(labels, grid, cells)
            grid = len(cells), len(cells[0])
        for block in blocks:
            window, shift, pads_first = swin_windows(block)
            labels = step(labels, global_matrix(next(left), grid, window, shift, pads_first=pads_first))
    return labels


def pyramid_labels(
    labels: Tensor,
    matrices: list[Tensor],
    grid: tuple[int, int],
    area_label: Tensor,
    *,
    ratios: list[int],
    depths: list[int],
    merging: tuple[int, int, int],
    class_token: bool,
) -> Tensor:
    """Through all stages of PVT; `merging` is kernel, stride and padding between two stages."""
    left = iter(matrices)
    for number, (ratio, depth) in enumerate(zip(ratios, depths, strict=True)):
        if number:
            cells = convolution_cells(grid, *merging)
            labels = mean_of_cells(labels, grid, cells)
            grid = len(cells), len(cells[0])
        if class_token and number == len(ratios) - 1:
            labels = joined(labels, area_label, 1)
        for _ in range(depth):
            keys = None
            if ratio > 1:
                keys = mean_of_cells(labels, grid, convolution_cells(grid, ratio, ratio, 0))
            labels = step(labels, next(left), keys)
    return labels
