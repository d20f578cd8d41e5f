"""Labels that come with a teacher's score map for each image, and what is computed of such maps."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class LabelMaps(NamedTuple):
    """Labels of a batch, and the scores of the best classes in every cell of each image.

    Goes through a loader's collation and to a device like any tuple of tensors; takes the place of the labels.

    Attributes:
        labels: `[B]` int64.
        classes: `[B, k, h, w]` int64, each cell's k best classes.
        scores: `[B, k, h, w]` float, their logits by the teacher.
    """

    labels: Tensor
    classes: Tensor
    scores: Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> LabelMaps:
        """The same on a device."""
        return LabelMaps(*(part.to(device, non_blocking=non_blocking) for part in self))


def class_labels(labels: Tensor | LabelMaps) -> Tensor:
    """The labels `[B]` or `[B, C]` themselves."""
    return labels.labels if isinstance(labels, LabelMaps) else labels


def dense_scores(maps: LabelMaps, num_classes: int) -> Tensor:
    """Logits of all classes in every cell, from those of its best ones.

    A class that is not among a cell's best has the logit 0, the mean over classes (ReLabel's and LV-ViT's
    code), but none above the cell's least known one.

    Args:
        maps: with k classes a cell; if that is all of them nothing is filled in.
        num_classes: C.

    Returns:
        `[B, C, h, w]` float32.

    Raises:
        ValueError: a class outside 0..C-1 (looked at on the CPU alone, where it needs no synchronisation).
    """
    classes = maps.classes.long()
    if classes.device.type == "cpu" and classes.numel():
        low, high = int(classes.min()), int(classes.max())
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(
                f"label maps hold class {wrong}, outside 0..{num_classes - 1} ({num_classes} classes)"
            )
    known = maps.scores.float()
    others = known.amin(dim=1, keepdim=True).clamp(max=0)
    return others.repeat(1, num_classes, 1, 1).scatter_(1, classes, known)


def resized_scores(scores: Tensor, grid: tuple[int, int]) -> Tensor:
    """Scores `[B, C, h, w]` on another grid: linear between cells, the mean over them where it is coarser."""
    rows, columns = scores.shape[-2:]
    coarse = min(rows, grid[0]), min(columns, grid[1])
    # not by interpolate's antialias, which gives zeros on a CPU where both grids have a single column
    if coarse != (rows, columns):
        scores = F.adaptive_avg_pool2d(scores, coarse)
    return scores if coarse == grid else F.interpolate(scores, size=grid, mode="bilinear")


def pooled_distribution(scores: Tensor) -> Tensor:
    """What is in a whole image: softmax of the mean logits, `[B, C, h, w]` -> `[B, C]` (ReLabel, LabelPooling)."""
    return scores.mean(dim=(2, 3)).softmax(dim=1)


def class_activation(scores: Tensor, labels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Each place's share of what speaks for the image's own label.

    Logits below 0, the mean over classes, speak against it and count as 0.

    Args:
        scores: `[B, C, h, w]` logits.
        labels: `[B, C]` distributions; of soft ones, the mean over the classes.
        grid: rows and columns of the result.

    Returns:
        `[B, gh, gw]`, not negative, sum 1 for each image; alike everywhere if nothing speaks for the label.
    """
    own = (scores.clamp(min=0) * labels.to(scores.dtype)[:, :, None, None]).sum(dim=1, keepdim=True)
    own = resized_scores(own, grid)[:, 0]
    total = own.sum(dim=(1, 2), keepdim=True)
    return torch.where(total > 0, own / total, 1 / (grid[0] * grid[1]))
