"""Every box and window computation. A box is (top, left, height, width), int64, in pixels or in tokens."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def cutmix_boxes(source_share: Tensor, centre: Tensor, *, image_size: tuple[int, int]) -> Tensor:
    """CutMix's boxes: side ratio sqrt(source_share), centred anywhere, clipped at the border.

    Every integer place whose centre lies on the image is equally likely, for odd and even sides alike, so
    that boxes touch all four edges equally often.

    Args:
        source_share: wished share of the pasted image, in [0, 1], `[n]`; clipping can only lessen it.
        centre: uniform numbers in [0, 1), `[n, 2]`, for the row and the column.
        image_size: height and width in pixels.

    Returns:
        Boxes `[n, 4]`; height or width is 0 where the wished share is too small for one pixel.
    """
    size = torch.tensor(image_size)
    side = (size * source_share.double().sqrt()[:, None]).long().clamp(max=size)
    return _placed(side, centre, size)


def token_boxes(source_share: Tensor, centre: Tensor, *, image_size: tuple[int, int]) -> Tensor:
    """CutMix's boxes on a grid of tokens: sides rounded to whole tokens, at least 1, so that none is empty.

    Rounding, where CutMix cuts off, keeps the mean area on a grid this coarse. Arguments and result as
    `cutmix_boxes`, in tokens.
    """
    size = torch.tensor(image_size)
    side = (size * source_share.double().sqrt()[:, None]).round().long().clamp(min=1)
    return _placed(side, centre, size)


def even_cutmix_boxes(source_share: Tensor, centre: Tensor, *, image_size: tuple[int, int]) -> Tensor:
    """CutMix's boxes as its and TL-Align's authors draw them: half a side to both sides of a pixel.

    Sides are even before clipping, and 0 (an empty box) for a wished side below 2. Arguments and result as
    `cutmix_boxes`.
    """
    size = torch.tensor(image_size)
    half = (size * source_share.double().sqrt()[:, None]).long() // 2
    start = (centre.double() * size).long() - half
    return _clipped(start, 2 * half, size)


def _placed(side: Tensor, centre: Tensor, size: Tensor) -> Tensor:
    places = size + 1 - side % 2
    return _clipped((centre.double() * places).long() - side // 2, side, size)


def _clipped(start: Tensor, side: Tensor, size: Tensor) -> Tensor:
    stop = (start + side).clamp(max=size)
    start = start.clamp(min=0)
    return torch.cat([start, stop - start], dim=1)


def boxes_to_mask(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes `[n, 4]` as masks `[n, H, W]`, True inside."""
    top, left, height, width = boxes[:, :, None].unbind(1)
    row = torch.arange(size[0], device=boxes.device)
    column = torch.arange(size[1], device=boxes.device)
    rows = (row >= top) & (row < top + height)
    columns = (column >= left) & (column < left + width)
    return rows[:, :, None] & columns[:, None, :]


def scale_boxes(boxes: Tensor, factor: tuple[int, int]) -> Tensor:
    """Boxes in tokens as boxes in pixels, for patches of `factor` = (height, width) pixels."""
    # from plain numbers: a tensor made on the host would have to be waited for
    return torch.stack([column * factor[axis % 2] for axis, column in enumerate(boxes.unbind(1))], dim=1)


def window_size(
    uniform: float, *, grid: tuple[int, int], side_ratio: tuple[float, float], side_law: str = "ratio"
) -> tuple[int, int]:
    """Height and width, in tokens, of SMMix's window; at least 1, at most the grid.

    Args:
        uniform: a number in [0, 1), the draw.
        grid: rows and columns of tokens.
        side_ratio: smallest and largest share of a side, low and high.
        side_law: `"ratio"`, the paper's floor(delta * side) with delta ~ U(low, high); or `"integer"`, the
            authors' code: uniform over the integers floor(low * side) .. floor(high * side).
    """
    low, high = side_ratio
    sides = []
    for side in grid:
        if side_law == "ratio":
            length = math.floor((low + uniform * (high - low)) * side)
        else:
            first, last = math.floor(low * side), math.floor(high * side)
            length = first + math.floor(uniform * (last - first + 1))
        sides.append(min(max(length, 1), side))
    return sides[0], sides[1]


def window_sums(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Sum of the scores in every window that lies inside the grid.

    Args:
        scores: `[B, gh, gw]`.
        size: window's height and width in tokens.

    Returns:
        `[B, gh - height + 1, gw - width + 1]`, at each window's top left token.
    """
    return F.avg_pool2d(scores[:, None], size, stride=1, divisor_override=1)[:, 0]


def max_windows(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes `[B, 4]`, in tokens, of the windows with the largest sum (SMMix eq. 7); the first on ties."""
    sums = window_sums(scores, size)
    columns = sums.shape[2]
    flat = sums.flatten(1)
    # argmax may return any of several equal maxima on a GPU; the smallest index of a maximum is always one
    index = torch.arange(flat.shape[1], device=flat.device)
    best = torch.where(flat == flat.amax(dim=1, keepdim=True), index, flat.shape[1]).amin(dim=1)
    # a row of NaN equals nothing: stay on the grid, the loss will tell
    best = best.clamp(max=flat.shape[1] - 1)
    height, width = (torch.full_like(best, side) for side in size)
    return torch.stack([best // columns, best % columns, height, width], dim=1)


def min_windows(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes `[B, 4]`, in tokens, of the windows with the smallest sum (SMMix eq. 7); the first on ties."""
    return max_windows(-scores, size)


def random_windows(
    grids: tuple[int, int, int] | torch.Size, size: tuple[int, int], generator: torch.Generator | None
) -> Tensor:
    """A window for each of the grids (B, gh, gw), anywhere inside, as boxes `[B, 4]` in tokens."""
    batch, rows, columns = grids
    places = torch.tensor([rows - size[0] + 1, columns - size[1] + 1])
    corner = (torch.rand(batch, 2, generator=generator, dtype=torch.float64) * places).long()
    return torch.cat([corner, torch.tensor(size).expand(batch, 2)], dim=1)


def attention_windows(
    attention: Tensor,
    source_index: Tensor,
    size: tuple[int, int],
    *,
    source: str = "max",
    target: str = "min",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Each pair's source window and target window, in tokens (SMMix eq. 7; the six schemes of Table A4).

    Args:
        attention: `[B, gh, gw]` of the clean batch.
        source_index: `[B]` int64; an image that is its own partner gets its target window twice.
        size: the windows' height and width in tokens.
        source: `max`, the source's most attended window, or `random`, anywhere.
        target: `min`, the target's least attended window, `max`, its most attended one, or `corr`, the place that
            corresponds to the source's window.
        generator: of the random windows.

    Returns:
        Two sets of boxes `[B, 4]`, of the source and of the target.
    """
    if source == "max":
        source_box = max_windows(attention, size)[source_index]
    else:
        source_box = random_windows(attention.shape, size, generator).to(attention.device, non_blocking=True)
    if target == "corr":
        return source_box, source_box
    target_box = (min_windows if target == "min" else max_windows)(attention, size)
    own = source_index == torch.arange(len(source_index), device=source_index.device)
    return torch.where(own[:, None], target_box, source_box), target_box
