"""ToMe's token merging (Bolya et al., ICLR 2023): which tokens are alike, and what a group shares."""

import torch
import torch.nn.functional as F
from torch import Tensor


def bipartite_matching(features: Tensor, merged: int) -> Tensor:
    """One round of bipartite soft matching (section 3): the most alike tokens join.

    Tokens at even places each look for the token at an odd place that is most like them, by cosine; the `merged`
    best pairs become one. The new order is ToMe's: even tokens that are left, then the odd ones.

    Args:
        features: `[B, n, D]`.
        merged: how many tokens to merge away, at most `n // 2`.

    Returns:
        `[B, n]` int64, which of the `n - merged` new tokens each token is part of; the first on ties.
    """
    batch, count, _ = features.shape
    unit = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=2)
    similarity = unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)  # [B, evens, odds]
    best = similarity.amax(dim=2)
    odds = torch.arange(similarity.shape[2], device=features.device)
    # argmax may return any of several equal maxima on a GPU; a row of NaN equals nothing
    partner = torch.where(similarity == best[:, :, None], odds, len(odds) - 1).amin(dim=2)
    rank = best.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    joins = rank < merged
    left = best.shape[1] - merged
    group = torch.empty(batch, count, dtype=torch.long, device=features.device)
    group[:, ::2] = torch.where(joins, left + partner, (~joins).cumsum(dim=1) - 1)
    group[:, 1::2] = left + odds
    return group


def merge_tokens(features: Tensor, merged: int, *, rounds: int) -> Tensor:
    """Groups of like tokens, by `rounds` of matching that merge about equally many each.

    A group's features are the mean over its tokens, as ToMe's size-weighted average makes them. A round merges at
    most half of what is left. Not for autocast: in half precision different tokens would tie.

    Args:
        features: `[B, N, D]`.
        merged: how many tokens are merged away in all.
        rounds: of matching, one after another.

    Returns:
        `[B, N]` int64, the group of each token, counted from 0.
    """
    batch, count, _ = features.shape
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    groups = torch.arange(count, device=features.device).expand(batch, count)
    sizes = features.new_ones(batch, count, 1)
    for number in range(rounds):
        now = merged * (number + 1) // rounds - merged * number // rounds
        now = min(now, features.shape[1] // 2)
        if now == 0:
            continue
        joined = bipartite_matching(features, now)
        total = _sums(features * sizes, joined, features.shape[1] - now)
        sizes = _sums(sizes, joined, features.shape[1] - now)
        features = total / sizes
        groups = joined.gather(1, groups)
    return groups


def _sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Sums over each group: `[B, n, D]`, `[B, n]` -> `[B, count, D]`."""
    totals = values.new_zeros(values.shape[0], count, values.shape[2])
    return totals.scatter_add(1, groups[:, :, None].expand_as(values), values)


def recover_scores(scores: Tensor, groups: Tensor, *, how: str = "sum") -> Tensor:
    """Every token gets the score of its group (MergeMix's map back from merged to all tokens).

    Args:
        scores: `[B, N]` of the tokens before merging.
        groups: `[B, N]` int64 below N.
        how: a group's score is the `sum` over its tokens, what proportional attention gives a merged token whose
            tokens have one key; or their `mean`.

    Returns:
        `[B, N]`, the same within a group.
    """
    values = scores[:, :, None]
    totals = _sums(values, groups, scores.shape[1])
    if how == "mean":
        totals = totals / _sums(torch.ones_like(values), groups, scores.shape[1]).clamp_min(1)
    return totals[:, :, 0].gather(1, groups)
