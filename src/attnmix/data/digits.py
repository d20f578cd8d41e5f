"""scikit-learn's digits as they are: a second embedded set."""

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from attnmix.data.embedded import EmbeddedImages
from attnmix.data.originals import CLASS_NAMES, load_originals, originals_of


class Digits(EmbeddedImages):
    """The 8x8 originals, bright ink on black, each once.

    Splits: "train" (1000), of which "train-fit" (800) and "validation" (200), and "test" (797).

    Attributes: `images` uint8 [N, 3, 8, 8], `labels` int64 [N], `originals` int64 [N] (index in
    scikit-learn's set). Item i is `(transform(PIL RGB image), label)`. Raises ValueError for an unknown
    split.
    """

    class_names = CLASS_NAMES

    def __init__(self, split: str = "train", *, transform: Callable[[Image.Image], Any] | None = None) -> None:
        super().__init__(transform)
        ink, digits = load_originals()
        self.split = split
        self.originals = torch.tensor(originals_of(split))
        self.labels = digits[self.originals]
        grey = (ink[self.originals] * 255).round().to(torch.uint8)
        self.images = grey[:, None].repeat(1, 3, 1, 1)
