"""Where the objects are, in the pixels that the model sees: of embedded sets, and of annotation files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attnmix.data.annotations_coco import CocoTruth
from attnmix.data.annotations_xml import XmlTruth
from attnmix.data.labelled import LabelledImages
from attnmix.data.mask_geometry import MaskGeometry

EXPECTED = "expected a folder of ImageNet or PASCAL VOC .xml files, or a COCO .json file"


class EmbeddedTruth:
    """Masks and boxes that a set has in itself (`masks` bool [N, h, w], `boxes` [N, 4]), brought to its transform.

    Args:
        images: such a set.
        transform: the images' evaluation transform.

    Raises ValueError for a set without them.
    """

    def __init__(self, images: LabelledImages, transform: Callable[[Image.Image], Any]) -> None:
        for name in ("masks", "boxes"):
            if not isinstance(getattr(images, name, None), Tensor):
                raise ValueError(f"{type(images).__name__} has no {name}: it does not know where its objects are")
        self._geometry = MaskGeometry(transform)
        self._masks: Tensor = images.masks  # type: ignore[attr-defined]
        self._boxes: Tensor = images.boxes  # type: ignore[attr-defined]

    def masks(self, index: Tensor) -> Tensor:
        """`[B, H, W]` int8: 1 object, 0 ground."""
        return torch.stack(
            [self._geometry.mask(mask.numpy().astype(np.uint8)) for mask in self._masks[index].unbind()]
        )

    def boxes(self, index: Tensor) -> list[Tensor]:
        """For each image `[1, 4]` int64 (top, left, height, width)."""
        size = (self._masks.shape[1], self._masks.shape[2])
        return [self._geometry.boxes(box[None], size) for box in self._boxes[index].unbind()]


def open_annotations(
    path: str | Path, images: LabelledImages, transform: Callable[[Image.Image], Any]
) -> XmlTruth | CocoTruth:
    """Annotations from files.

    Args:
        path: a folder with ImageNet's or VOC's XML files anywhere below it, or a COCO JSON file.
        images: the images, named by their files.
        transform: their evaluation transform.

    Raises FileNotFoundError or ValueError that says what would be right, or that no image has an annotation.
    """
    path = Path(path)
    if path.is_dir():
        return XmlTruth(path, images, transform)
    if not path.exists():
        raise FileNotFoundError(f"no annotations {str(path)!r}; {EXPECTED}")
    if path.suffix.lower() != ".json":
        raise ValueError(f"annotations {str(path)!r}; {EXPECTED}")
    return CocoTruth(path, images, transform)
