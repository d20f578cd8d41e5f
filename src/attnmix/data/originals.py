"""The real pictures behind both embedded sets: scikit-learn's 1797 handwritten digits, and their splits."""

from functools import cache

import torch
from sklearn.datasets import load_digits

from attnmix.data._nearest import nearest

CLASS_NAMES = [str(digit) for digit in range(10)]

# First and last original (exclusive) of each split. Settings are chosen on train-fit against validation,
# which divide the training originals between them; the test originals never take part in a choice.
SPLITS = {"train": (0, 1000), "test": (1000, 1797), "train-fit": (0, 800), "validation": (800, 1000)}


@cache
def load_originals() -> tuple[torch.Tensor, torch.Tensor]:
    """Ink in [0, 1] (float64 [1797, 8, 8]) and digits (int64 [1797]); shared, so not to be written to."""
    digits = load_digits()
    return torch.from_numpy(digits.images) / 16, torch.from_numpy(digits.target).long()


def originals_of(split: str, splits: dict[str, tuple[int, int]] = SPLITS) -> range:
    """The indices of a split's originals; ValueError names the known splits."""
    if split not in splits:
        raise ValueError(f"unknown split {split!r}{nearest(split, splits)}; known: {', '.join(splits)}")
    return range(*splits[split])
