"""A COCO segmentation as a mask.

pycocotools draws polygons, of numbers that are checked here: its C code ends the process over others. Runs are
drawn here, since it leaves what too few of them do not cover as the memory was.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["segmentation_mask"]

LONGEST = 10**6  # pixels around a polygon


def segmentation_mask(segmentation: Any, size: tuple[int, int]) -> np.ndarray:
    """Draw polygons (lists of x, y, x, y, ...) or runs (`{"size": [h, w], "counts": ...}`).

    Args:
        segmentation: of an annotation.
        size: height and width of its image.

    Returns:
        bool `[h, w]`.

    Raises:
        ValueError: coordinates far outside, runs of another size, and what is neither.
    """
    if isinstance(segmentation, Mapping):
        return _runs(segmentation, size)
    if not isinstance(segmentation, Sequence) or isinstance(segmentation, str):
        raise ValueError(f"a {type(segmentation).__name__}, neither polygons nor runs")
    from pycocotools import mask

    polygons = [_outline(polygon, size) for polygon in segmentation]
    drawn = mask.decode(mask.merge(mask.frPyObjects(polygons, *size)))
    return drawn.astype(bool)


def _outline(polygon: Any, size: tuple[int, int]) -> list[float]:
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
        raise ValueError("a polygon has three corners at least, each of an x and a y")
    corners = [float(side) for side in polygon]
    for place, corner in enumerate(corners):
        side = size[1 - place % 2]
        if not math.isfinite(corner) or not -side <= corner <= 2 * side:
            raise ValueError(f"a corner at {corner:g} of {side} pixels")
    xs, ys = corners[::2], corners[1::2]
    if sum(max(abs(x - xs[i - 1]), abs(ys[i] - ys[i - 1])) for i, x in enumerate(xs)) > LONGEST:
        raise ValueError(f"a polygon of more than {LONGEST} pixels around")
    return corners


def _runs(segmentation: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    declared, counts = segmentation["size"], segmentation["counts"]
    if list(declared) != list(size):
        raise ValueError(f"runs of size {str(declared)[:60]}, and the image is of {list(size)}")
    counts = _unpacked(counts) if isinstance(counts, str) else counts
    right = isinstance(counts, list) and all(isinstance(count, int) and count >= 0 for count in counts)
    if not right or sum(counts) != size[0] * size[1]:
        raise ValueError(f"runs that do not cover {size[0]} x {size[1]} pixels")
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(size[1], size[0]).T


def _unpacked(text: str) -> list[int]:
    """COCO's packed runs: five bits in a character, the lowest first; from the fourth on, what differs to the
    second before.
    """
    counts: list[int] = []
    value, bits = 0, 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64 or bits > 60:
            raise ValueError(f"packed runs with {character!r}")
        value |= (code & 31) << bits
        bits += 5
        if not code & 32:
            value -= (code & 16 and 1) << bits
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, bits = 0, 0
    if bits:
        raise ValueError("packed runs that end within a number")
    return counts
