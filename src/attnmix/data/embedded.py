"""What the embedded data sets share: pictures held in memory."""

from collections.abc import Callable
from typing import Any

from PIL import Image
from torch import Tensor

from attnmix.data.labelled import LabelledImages

KEPT_BYTES = 500_000_000  # of float32 images


class EmbeddedImages(LabelledImages):
    """Pictures `images`, uint8 `[N, 3, H, W]`, with `labels`, int64 `[N]`.

    Item i is `(transform(PIL RGB image), label)`.

    Attributes:
        transform: applied to the PIL image; None: items are PIL images.
    """

    images: Tensor
    labels: Tensor

    def __init__(self, transform: Callable[[Image.Image], Any] | None) -> None:
        self.transform = transform

    @property
    def transform(self) -> Callable[[Image.Image], Any] | None:
        """Applied to the PIL image."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[[Image.Image], Any] | None) -> None:
        self._transform = transform
        self._kept: dict[int, Any] | None = None

    def keep_items(self) -> None:
        """Make each image once, where all fit into `KEPT_BYTES`: for a `transform` that draws nothing.

        Up to another `transform`. With small models a third of an epoch goes into making the same images again.
        """
        if 4 * self.images.numel() <= KEPT_BYTES:
            self._kept = {}

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = None if self._kept is None else self._kept.get(index)
        if image is None:
            image = Image.fromarray(self.images[index].permute(1, 2, 0).contiguous().numpy())
            image = image if self.transform is None else self.transform(image)
            if self._kept is not None:
                self._kept[index] = image
        return image, int(self.labels[index])
