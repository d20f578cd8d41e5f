"""The real pictures behind both embedded sets: scikit-learn's 1797 handwritten digits, and their splits."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from attnmix._nearest import nearest

CLASS_NAMES = [str(digit) for digit in range(10)]

# First and last original (exclusive) of each split. Settings are chosen on train-fit against validation,
# which divide the training originals between them; the test originals never take part in a choice.
SPLITS = {"train": (0, 1000), "test": (1000, 1797), "train-fit": (0, 800), "validation": (800, 1000)}


@cache
def load_originals() -> tuple[torch.Tensor, torch.Tensor]:
    """Ink in [0, 1] (float64 [1797, 8, 8]) and digits (int64 [1797]); shared, so not to be written to."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    # not through scikit-learn, whose import (pandas, SciPy) is a fifth of what every command would wait for
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return torch.from_numpy(rows[:, :-1].reshape(-1, 8, 8)) / 16, torch.from_numpy(rows[:, -1]).long()


def originals_of(split: str, splits: dict[str, tuple[int, int]] = SPLITS) -> range:
    """The indices of a split's originals; ValueError names the known splits."""
    if split not in splits:
        raise ValueError(f"unknown split {split!r}{nearest(split, splits)}; known: {', '.join(splits)}")
    return range(*splits[split])
