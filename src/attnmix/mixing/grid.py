"""From pixels to tokens and back."""

import torch
import torch.nn.functional as F
from torch import Tensor


def mask_to_grid(mask: Tensor, grid: tuple[int, int], *, how: str = "nearest") -> Tensor:
    """A pixel mask at token resolution, flattened.

    Args:
        mask: `[B, H, W]` bool, True = source pixel.
        grid: rows and columns of tokens.
        how: `"nearest"` takes one pixel per token (TransMix eq. 7's arrow); `"area"` the exact share of each
            token's pixels, which removes the bias of nearest.

    Returns:
        `[B, N]` float32 in [0, 1].
    """
    if how == "nearest":
        resized = F.interpolate(mask[:, None].float(), size=grid, mode="nearest")
    else:
        resized = F.adaptive_avg_pool2d(mask[:, None].float(), grid)
    return resized.flatten(1)


def grid_share(scores: Tensor, mask: Tensor) -> Tensor:
    """Share of the scores that lies under the mask: `[B, N]`, `[B, N]` -> `[B]` in [0, 1] (TransMix eq. 7).

    Scores that are all 0 say nothing: then it is the mask's own share.
    """
    # both sums in one order of terms, so that a full mask gives exactly 1
    total = scores.sum(dim=1)
    share = (scores * mask).sum(dim=1) / total
    return torch.where(total > 0, share, mask.mean(dim=1)).clamp(0, 1)


def fold_tokens(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Token scores `[B, N]` as a map `[B, gh, gw]`."""
    return tokens.unflatten(1, grid)
