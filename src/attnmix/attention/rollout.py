"""Attention followed through all blocks."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.attention.call import AttentionCall
from attnmix.attention.quantities import first_row, left_product


def first_row_rollout(calls: Sequence[AttentionCall], num_prefix_tokens: int) -> Tensor:
    """Row 0 of P'_L ... P'_2 P'_1 (TransMix's ablation: attention alone, no residual), [B, M_key of block 1].

    One row times a matrix per block, from the last block down. Where only one query attends (CaiT's class
    blocks) the other tokens stay as they are; where tokens join or leave between blocks they have to be the
    prefix tokens, else ValueError.
    """
    row = first_row(calls[-1])
    for call in reversed(calls[:-1]):
        queries, keys = call.shape[2:]
        tokens = row.shape[1]
        if queries == tokens:
            row = left_product(row, call)
        elif queries == 1 and keys == tokens:
            row = row[:, :1] * first_row(call) + F.pad(row[:, 1:], (1, 0))
        elif queries == tokens + num_prefix_tokens:  # the pool above looks at image tokens only
            row = left_product(F.pad(row, (num_prefix_tokens, 0)), call)
        elif queries == tokens - num_prefix_tokens:  # prefix tokens join above: their share ends there
            row = left_product(row[:, num_prefix_tokens:], call)
        else:
            raise ValueError(f"class_rollout needs the same tokens in every block, got {queries} then {tokens}")
    return row


def mean_over_blocks(scores: Sequence[Tensor]) -> Tensor:
    """Mean of all blocks' `scores` [B, N] (SMMix's ablation, Table A5). Other N in some block: ValueError."""
    shapes = {tuple(score.shape) for score in scores}
    if len(shapes) > 1:
        raise ValueError(f"image_rollout needs the same tokens in every block, got shapes {sorted(shapes)}")
    return torch.stack(list(scores)).mean(dim=0)
