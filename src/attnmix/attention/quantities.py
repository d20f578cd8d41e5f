"""What mixing methods read from one attention call, as pure functions.

P [B, H, M_query, M_key] is softmax attention after bias, before dropout; P' [B, M_query, M_key] its mean
over heads. Results are float32 without gradient; memory grows linearly with the number of tokens, except
for `probabilities`.
"""

import torch
from torch import Tensor

from attnmix.attention.call import AttentionCall, aside, chunks, in_float32, softmax_rows


def probabilities(call: AttentionCall) -> Tensor:
    """P itself, [B, H, M_query, M_key]: quadratic in the number of tokens."""
    with aside(call.device):
        return softmax_rows(in_float32(call), 0, call.shape[2])


def first_row(call: AttentionCall) -> Tensor:
    """Row 0 of P' (the class token's, or a pool's only query), [B, M_key]."""
    with aside(call.device):
        return softmax_rows(in_float32(call), 0, 1).mean(dim=1)[:, 0]


def left_product(weights: Tensor, call: AttentionCall) -> Tensor:
    """`weights` P': what a mixture of queries [B, M_query] (or [M_query]) attends to, [B, M_key]."""
    with aside(call.device):
        batch, heads, queries, keys = call.shape
        weights = weights.float().expand(batch, queries)
        total = torch.zeros(batch, keys, device=call.device)
        for samples, rows, attention in chunks(call):
            total[samples] += (weights[samples, None, None, rows] @ attention).sum(dim=1)[:, 0]
        return total / heads


def right_product(call: AttentionCall, values: Tensor) -> Tensor:
    """P' `values`: each query's attention-weighted mean of `values` [B, M_key], [B, M_query]."""
    with aside(call.device):
        column = values.float()[:, None, :, None]  # [B, 1, M_key, 1]
        attended = torch.empty(call.shape[0], call.shape[2], device=call.device)
        for samples, rows, attention in chunks(call):
            attended[samples, rows] = (attention @ column[samples]).mean(dim=1)[..., 0]
        return attended


def renormalise(scores: Tensor) -> Tensor:
    """Each row of `scores` [B, N] divided by its sum (a row of zeros stays one)."""
    return scores / scores.sum(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


def class_attention(call: AttentionCall, key_prefix: int) -> Tensor:
    """The class token's attention to the image tokens, renormalised (TransMix eq. 5), [B, N]."""
    return renormalise(first_row(call)[:, key_prefix:])


def image_attention(call: AttentionCall, query_prefix: int, key_prefix: int) -> Tensor:
    """Mean attention of the image tokens to each image token, not renormalised (SMMix eq. 6), [B, N]."""
    queries = call.shape[2]
    weights = torch.full((queries,), 1.0 / (queries - query_prefix), device=call.device)
    weights[:query_prefix] = 0.0
    return left_product(weights, call)[:, key_prefix:]


def presence(call: AttentionCall, query_prefix: int, key_prefix: int) -> Tensor:
    """How present each image token is in all the mixed image tokens (TL-Align eq. 2), [B, N].

    The sum over image queries of their rows, each divided by what it gives to the image keys: all together as many
    as there are image queries, and 1 everywhere if no token is favoured. A query that looks at prefix tokens alone
    counts for nothing.
    """
    image_keys = torch.ones(call.shape[0], call.shape[3], device=call.device)
    image_keys[:, :key_prefix] = 0.0
    share = right_product(call, image_keys)
    weights = torch.where(share > torch.finfo(share.dtype).tiny, 1 / share, 0.0)
    weights[:, :query_prefix] = 0.0
    return left_product(weights, call)[:, key_prefix:]
