"""Boxes of ImageNet's and PASCAL VOC's XML files."""

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree  # resolves no external entities

import torch
from PIL import Image
from torch import Tensor

from attnmix.data.annotation_index import MOST_PIXELS, AnnotationIndex, check_size, original_size
from attnmix.data.labelled import LabelledImages
from attnmix.data.mask_geometry import MaskGeometry

NO_BOXES = torch.empty(0, 4, dtype=torch.int64)


class XmlTruth:
    """Boxes from one XML file per image, read when they are asked for.

    An image's file is the one of its stem, anywhere below the folder. Corners count from 1 and belong to the box,
    as VOC has them; ImageNet's are taken the same way. Where the XML declares another size than the image has, its
    coordinates are scaled.

    Args:
        folder: of the XML files.
        images: named by their files.
        transform: the images' evaluation transform.

    Raises ValueError where no image has a file, and for a malformed file when it is read.
    """

    def __init__(
        self, folder: str | Path, images: LabelledImages, transform: Callable[[Image.Image], Any]
    ) -> None:
        self._geometry = MaskGeometry(transform)
        self._index = AnnotationIndex(((path, path) for path in _xml_files(folder)), suffix=False)
        self._images = images
        self._index.check(images, f"the folder {str(folder)!r}")

    def masks(self, index: Tensor) -> Tensor | None:
        """None: only boxes are known."""
        return None

    def boxes(self, index: Tensor) -> list[Tensor]:
        """For each image `[K, 4]` int64 (top, left, height, width); no rows where none is known."""
        return [self._boxes(self._images.name_of(number)) for number in index.tolist()]

    def _boxes(self, name: str) -> Tensor:
        path = self._index.find(name)
        if path is None:
            return NO_BOXES
        boxes, declared = read_xml(path)
        if not len(boxes):
            return NO_BOXES
        size = original_size(name, declared)
        if 0 in size:
            raise ValueError(f"{path}: no size above 0, nor an image file {name!r} that would tell it")
        check_size(*size, f"{path}: an image")
        if 0 not in declared:
            boxes = boxes * torch.tensor(size * 2) / torch.tensor(declared * 2)
        return self._geometry.boxes(boxes, size)


def read_xml(path: str | Path) -> tuple[Tensor, tuple[int, int]]:
    """All objects' boxes in one file: float64 `[K, 4]` (top, left, height, width), and the image's declared size.

    Returns:
        Boxes in pixels counted from 0; height and width, 0 where the file does not say.

    Raises ValueError naming a file that is no XML, or in which a number is missing or wrong.
    """
    try:
        root = ElementTree.parse(path).getroot()
        declared = (int(_number(root, "size/height", 0)), int(_number(root, "size/width", 0)))
        if not all(0 <= side <= MOST_PIXELS for side in declared):
            raise ValueError(f"height {declared[0]:g} and width {declared[1]:g}")
        boxes = []
        for box in (_part(thing, "bndbox") for thing in root.iter("object")):
            left, top, right, bottom = (_number(box, corner) for corner in ("xmin", "ymin", "xmax", "ymax"))
            if right < left or bottom < top:
                raise ValueError(f"xmin {left:g} to xmax {right:g}, ymin {top:g} to ymax {bottom:g}")
            boxes.append((top - 1, left - 1, bottom - top + 1, right - left + 1))
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # LookupError: an encoding
        raise ValueError(
            f"{path}: malformed annotation ({error}); expected object/bndbox with xmin, ymin, xmax, ymax"
        ) from error
    return torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4), declared


def _xml_files(folder: str | Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names if name.lower().endswith(".xml"))


def _part(element: ElementTree.Element, path: str) -> ElementTree.Element:
    found = element.find(path)
    if found is None:
        raise ValueError(f"no {path} in {element.tag[:60]}")
    return found


def _number(element: ElementTree.Element, path: str, default: float | None = None) -> float:
    text = element.findtext(path)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        shown = text if text is None else text[:60]
        raise ValueError(f"{path} of {element.tag[:60]} is {shown!r}, no number")
    return value
