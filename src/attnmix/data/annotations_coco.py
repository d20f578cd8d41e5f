"""Boxes and masks of a COCO JSON file."""

import contextlib
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import InterpolationMode, resize

from attnmix.data.annotation_index import AnnotationIndex, check_size, original_size
from attnmix.data.labelled import LabelledImages
from attnmix.data.mask_geometry import MaskGeometry, box_to_mask
from attnmix.data.outlines import segmentation_mask

NOT_COUNTED = 255


class CocoTruth:
    """Boxes, and masks where the file has segmentations; an image's masks are drawn when they are asked for.

    Images go by their file names, with as many folders as agree. A mask is 1 on every object, -1 on a crowd
    (iscrowd) and in the box of an object without segmentation; all -1 for an image that the file does not know.
    Crowds are no boxes.

    Args:
        path: of the JSON file, which is held in memory as a whole.
        images: named by their files.
        transform: the images' evaluation transform.

    Raises ValueError for a file of another form, where it knows no image, and for a malformed annotation when that
    is read.
    """

    def __init__(self, path: str | Path, images: LabelledImages, transform: Callable[[Image.Image], Any]) -> None:
        self._geometry = MaskGeometry(transform)
        self._path = path
        self._coco = _open(path)
        known = self._coco.imgs.items()
        try:
            self._index = AnnotationIndex(
                ((str(entry["file_name"]), number) for number, entry in known), suffix=True
            )
        except KeyError as error:
            raise ValueError(f"{path}: an image without {error}") from error
        self._images = images
        self._index.check(images, f"the file {str(path)!r}")
        self._has_masks = any(entry.get("segmentation") for entry in self._coco.anns.values())

    def masks(self, index: Tensor) -> Tensor | None:
        """`[B, H, W]` int8: 1 object, 0 ground, -1 not counted; None where the file has no segmentations."""
        if not self._has_masks:
            return None
        return torch.stack([self._mask(self._images.name_of(number)) for number in index.tolist()])

    def boxes(self, index: Tensor) -> list[Tensor]:
        """For each image `[K, 4]` int64 (top, left, height, width)."""
        return [self._boxes(self._images.name_of(number)) for number in index.tolist()]

    def _boxes(self, name: str) -> Tensor:
        number = self._index.find(name)
        if number is None:
            return torch.empty(0, 4, dtype=torch.int64)
        declared = self._declared(number)
        objects = [entry for entry in self._coco.imgToAnns[number] if not entry.get("iscrowd")]
        boxes = torch.tensor([self._box(entry) for entry in objects], dtype=torch.float64).reshape(-1, 4)
        size = original_size(name, declared)
        return self._geometry.boxes(boxes * torch.tensor(size * 2) / torch.tensor(declared * 2), size)

    def _mask(self, name: str) -> Tensor:
        number = self._index.find(name)
        if number is None:
            return self._geometry.mask(np.full((64, 64), NOT_COUNTED, np.uint8)).fill_(
                -1
            )  # any size is seen as one
        declared = self._declared(number)
        objects, unsure = np.zeros(declared, bool), np.zeros(declared, bool)
        for entry in self._coco.imgToAnns[number]:
            if entry.get("segmentation"):
                (unsure if entry.get("iscrowd") else objects)[self._drawn(entry, declared)] = True
            else:
                unsure |= box_to_mask(self._box(entry), declared) == 1
        mask = np.where(objects, 1, np.where(unsure, NOT_COUNTED, 0)).astype(np.uint8)
        size = original_size(name, declared)
        if size != declared:
            mask = np.array(resize(Image.fromarray(mask), list(size), InterpolationMode.NEAREST))
        return self._geometry.mask(mask)

    def _declared(self, number: Any) -> tuple[int, int]:
        entry = self._coco.imgs[number]
        try:
            size = int(entry["height"]), int(entry["width"])
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{self._path}: image {number!r} needs a height and a width: {error}") from error
        check_size(*size, f"{self._path}: image {number!r}")
        return size

    def _box(self, entry: dict[str, Any]) -> tuple[float, float, float, float]:
        try:
            left, top, width, height = (float(side) for side in entry["bbox"])
            if not math.isfinite(left + top + width + height):
                raise ValueError("not finite")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self._path}: annotation {entry.get('id')!r}: bbox {entry.get('bbox')!r}; expected "
                "[left, top, width, height]"
            ) from error
        return top, left, height, width

    def _drawn(self, entry: dict[str, Any], size: tuple[int, int]) -> np.ndarray:
        try:
            return segmentation_mask(entry["segmentation"], size)
        except Exception as error:  # pycocotools has many, a bare Exception among them
            raise ValueError(
                f"{self._path}: annotation {entry.get('id')!r}: its segmentation cannot be drawn: {error}"
            ) from error


def _open(path: str | Path) -> Any:
    from pycocotools.coco import COCO

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it tells what it does
            coco = COCO(str(path))
    except OSError:
        raise
    except Exception as error:  # its reader checks nothing
        raise ValueError(f"{path}: not in COCO's form: {type(error).__name__}: {error}") from error
    for part in ("images", "annotations"):
        if part not in coco.dataset:
            raise ValueError(f"{path}: not in COCO's form: no {part!r}")
    return coco
