"""AutoMix's Mix Block: a mask for two images, from the features of both."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.autocast_mode import is_autocast_available

from attnmix.methods.heads import added_linear
from attnmix.mixing import fold_tokens

UPSAMPLINGS = ("nearest", "bilinear")


def with_ratio(tokens: Tensor, ratio: Tensor) -> Tensor:
    """Features with their image's share of the mix as one more channel.

    `[B, N, D]`, `[B]` -> `[B, N, D + 1]`.
    """
    channel = ratio.to(tokens)[:, None, None].expand(-1, tokens.shape[1], 1)
    return torch.cat((tokens, channel), dim=2)


def pair_scores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What each place of the query image reads from the places of the other that are like it.

    The similarity of a query to all keys is scaled, and sums to 1 over the keys; with these shares the query's
    place gets the mean of the keys' values.

    Args:
        query: `[B, N, d]`.
        key: `[B, M, d]`.
        value: `[B, M]`, of the keys.

    Returns:
        `[B, N]`, at least in float32.
    """
    exact = torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(exact), key.to(exact), value.to(exact)
    kind = query.device.type
    # devices without autocast (meta) have none to switch off
    plain: AbstractContextManager = nullcontext()
    if is_autocast_available(kind):
        plain = torch.autocast(kind, enabled=False)
    with plain:
        similarity = query @ key.mT / query.shape[-1] ** 0.5
        return (similarity.softmax(dim=2) @ value[..., None])[..., 0]


def upsampled_mask(scores: Tensor, size: tuple[int, int], *, how: str) -> Tensor:
    """The source's share of every pixel, from its score of each cell.

    Args:
        scores: `[B, gh, gw]`, higher for more of the source.
        size: height and width in pixels.
        how: `nearest` or `bilinear`; scores are brought to the pixels, then squashed.

    Returns:
        `[B, H, W]` in (0, 1), with the scores' gradient.
    """
    smooth = {"align_corners": False} if how == "bilinear" else {}
    return torch.sigmoid(F.interpolate(scores[:, None], size=size, mode=how, **smooth)[:, 0])


def area_loss(mask: Tensor, source_weight: Tensor, *, margin: float) -> Tensor:
    """How far each mask's mean is from its ratio, beyond the margin: `[B, H, W]`, `[B]` -> scalar."""
    distance = (mask.mean(dim=(1, 2)) - source_weight.to(mask)).abs()
    return (distance - margin).clamp(min=0).mean()


class MixBlock(nn.Module):
    """Cross-attention between two images' features, each knowing its share of the mix.

    One projection makes queries of the target's features and keys of the source's; another makes one value of each
    of the source's, which the target's places read (the authors' code: softmax(query key^T) value). As both see
    the ratio, so does the mask.

    Args:
        width: of a feature.
        generator: of the initial weights, on the CPU.
    """

    def __init__(self, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.embed = added_linear(width + 1, max(1, width // 2), generator=generator)
        self.value = added_linear(width + 1, 1, generator=generator)

    def forward(
        self, tokens: Tensor, source_index: Tensor, source_weight: Tensor, grid: tuple[int, int]
    ) -> Tensor:
        """The source's scores `[B, gh, gw]`, of features `[B, N, D]`, partners `[B]` and their ratios `[B]`."""
        tokens = tokens.to(self.value.weight.dtype)
        target = with_ratio(tokens, 1 - source_weight)
        source = with_ratio(tokens[source_index], source_weight)
        return fold_tokens(pair_scores(self.embed(target), self.embed(source), self.value(source)[..., 0]), grid)
