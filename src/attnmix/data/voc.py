"""PASCAL VOC's images with object masks of any class."""

from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attnmix.data.decoding import UNREADABLE
from attnmix.data.labelled import ReadableImages
from attnmix.data.mask_geometry import MaskGeometry

LAYOUT = "expected JPEGImages/*.jpg, SegmentationClass/*.png and ImageSets/Segmentation/SPLIT.txt, as in VOC2012"
TOLERATED = 1  # unreadable images that an evaluation leaves out however small the set


class VocTruth:
    """Masks of all objects together, whatever their classes; boxes are not known.

    Args:
        paths: of the images' masks: a palette in which 0 is ground and 255 (void, objects' rims) is not counted.
        transform: the images' evaluation transform.
    """

    def __init__(self, paths: list[Path], transform: Callable[[Image.Image], Any]) -> None:
        self._paths = paths
        self._geometry = MaskGeometry(transform)

    def masks(self, index: Tensor) -> Tensor:
        """`[B, H, W]` int8: 1 object, 0 ground, -1 not counted.

        Raises ValueError naming a file that is no such mask.
        """
        return torch.stack([self._geometry.mask(_read_mask(self._paths[number])) for number in index.tolist()])

    def boxes(self, index: Tensor) -> list[Tensor]:
        """No rows."""
        return [torch.empty(0, 4, dtype=torch.int64)] * len(index)


def open_voc(
    root: str | Path, split: str = "val", *, transform: Callable[[Image.Image], Any]
) -> tuple[ReadableImages, VocTruth]:
    """The images of a segmentation split, all of one class "object", and their masks.

    Args:
        root: the folder that holds JPEGImages (VOCdevkit/VOC2012).
        split: a file in ImageSets/Segmentation.
        transform: the images' evaluation transform.

    Raises FileNotFoundError or ValueError naming what is missing, and the layout.
    """
    root = Path(root)
    for part in ("", "JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        if not (root / part).is_dir():
            raise FileNotFoundError(f"no folder {str(root / part)!r}; {LAYOUT}")
    listing = root / "ImageSets/Segmentation" / f"{split}.txt"
    if not listing.is_file():
        present = ", ".join(sorted(path.stem for path in listing.parent.glob("*.txt"))) or "none"
        raise FileNotFoundError(f"no split {split!r}: no file {str(listing)!r} (splits: {present}); {LAYOUT}")
    try:
        names = listing.read_text(encoding="utf-8").split()
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(listing)!r} is no list of names: {error}") from error
    if not names:
        raise ValueError(f"{str(listing)!r} names no image; {LAYOUT}")
    for name in names:
        if ".." in PurePath(name).parts or PurePath(name).is_absolute() or "\0" in name:
            raise ValueError(f"{str(listing)!r} names {name[:200]!r}, which is outside of its folder; {LAYOUT}")
    images = [root / "JPEGImages" / f"{name}.jpg" for name in names]
    masks = [root / "SegmentationClass" / f"{name}.png" for name in names]
    for files in (images, masks):
        missing = [path for path in files if not path.is_file()]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} of the {len(names)} files that {listing.name} names are not in "
                f"{str(files[0].parent)!r}, the first {missing[0].name!r}; {LAYOUT}"
            )
    found = ReadableImages(
        len(images),
        partial(_load, images),
        partial(_name, images),
        class_names=["object"],
        transform=transform,
        tolerated=TOLERATED,
    )
    return found, VocTruth(masks, transform)


def _load(paths: list[Path], index: int) -> tuple[BinaryIO, int]:
    return paths[index].open("rb"), 0


def _name(paths: list[Path], index: int) -> str:
    return str(paths[index])


def _read_mask(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            classes = np.array(image)
    except UNREADABLE as error:
        raise ValueError(f"{path}: the mask cannot be read: {error}") from error
    if classes.ndim != 2:
        raise ValueError(f"{path}: a mask in colour; expected a palette's numbers (0 ground, 255 void)")
    return np.where(classes == 255, 255, classes > 0).astype(np.uint8)
