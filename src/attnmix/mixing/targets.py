"""Labels as distributions: smoothing and mixing. Rows sum to 1, always in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor


def soft_targets(labels: Tensor, *, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """Labels `[B]` int64, or distributions `[B, C]`, as smoothed distributions `[B, C]` float32.

    Raises:
        ValueError: another shape or type, another number of classes, a label outside 0..C-1 or a distribution
            that does not sum to 1 (values are looked at on the CPU, where that needs no synchronisation).
    """
    if labels.ndim == 1 and not labels.is_floating_point():
        if labels.device.type == "cpu" and labels.numel():
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= num_classes:
                wrong = low if low < 0 else high
                raise ValueError(f"label {wrong} is outside 0..{num_classes - 1} ({num_classes} classes)")
        target = F.one_hot(labels.long(), num_classes).float()
    elif labels.ndim == 2 and labels.is_floating_point():
        if labels.shape[1] != num_classes:
            raise ValueError(f"soft labels have {labels.shape[1]} classes, the method has {num_classes}")
        target = labels.float()
        if labels.device.type == "cpu" and ((target.sum(dim=1) - 1).abs() > 1e-2).any():
            worst = target.sum(dim=1)[(target.sum(dim=1) - 1).abs().argmax()]
            raise ValueError(f"soft labels must sum to 1, but one row sums to {worst:.3g}")
    else:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and type {labels.dtype}: "
            f"want [B] integers or [B, {num_classes}] floats"
        )
    return target * (1 - smoothing) + smoothing / num_classes


def mix_targets(targets: Tensor, source_index: Tensor, source_weight: Tensor) -> Tensor:
    """Mix distributions: weight * source + (1 - weight) * target (SMMix eq. 8, TransMix eq. 2).

    Args:
        targets: `[B, C]`.
        source_index: `[B]` int64.
        source_weight: `[B]` in [0, 1].

    Returns:
        `[B, C]` float32, rows sum to 1.
    """
    return torch.lerp(targets, targets[source_index], source_weight.float()[:, None])
