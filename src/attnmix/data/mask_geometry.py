"""How masks and boxes of an original image come to lie in what the model sees of it."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data.transforms import (
    CenterCropOrPad,
    MaybePILToTensor,
    MaybeToTensor,
    ResizeKeepRatio,
    ToTensor,
    TrimBorder,
)
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.functional import InterpolationMode, pil_to_tensor

from attnmix.data.scenes import boxes_of

_VALUES_ONLY = (
    transforms.ToTensor,
    transforms.PILToTensor,
    transforms.Normalize,
    transforms.Grayscale,
    MaybeToTensor,
    MaybePILToTensor,
    ToTensor,
)


class MaskGeometry:
    """An evaluation transform's resizing, cropping and padding alone: each pixel takes one original pixel's value.

    What the transform adds around an image is ground.

    Args:
        transform: timm's or torchvision's, of steps that draw nothing at random.

    Raises ValueError for a step whose geometry is not known.
    """

    def __init__(self, transform: Callable[[Image.Image], Any]) -> None:
        self._steps = transforms.Compose(list(_geometry(transform)))

    def mask(self, values: np.ndarray) -> Tensor:
        """A mask of the original image's pixels (uint8 `[h, w]`: 1 object, 0 ground, 255 not counted) as seen.

        Returns:
            `[H, W]` int8: 1 object, 0 ground, -1 not counted.
        """
        # read as signed, 255 is -1
        return pil_to_tensor(self._steps(Image.fromarray(values)))[0].view(torch.int8)

    def boxes(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Tight boxes of what is seen of each box; one of which no pixel is seen vanishes.

        Args:
            boxes: `[K, 4]` (top, left, height, width) in the original's pixels, which need not be whole.
            size: height and width of the original.

        Returns:
            `[at most K, 4]` int64 in the model's input pixels.
        """
        found = [torch.empty(0, 4, dtype=torch.int64)]
        for box in boxes.tolist():
            seen = self.mask(box_to_mask(box, size)) == 1
            if seen.any():
                found.append(boxes_of(seen[None]))
        return torch.cat(found)


def box_to_mask(box: Sequence[float], size: tuple[int, int]) -> np.ndarray:
    """The pixels whose centres lie in a box (top, left, height, width), 1 in a uint8 mask of that size."""
    mask = np.zeros(size, np.uint8)
    rows, columns = (
        slice(max(math.ceil(box[axis] - 0.5), 0), max(math.ceil(box[axis] + box[axis + 2] - 0.5), 0))
        for axis in (0, 1)
    )
    mask[rows, columns] = 1
    return mask


def _geometry(transform: Any) -> Iterator[Any]:
    """The steps that move pixels, as masks need them."""
    if isinstance(transform, transforms.Compose):
        for step in transform.transforms:
            yield from _geometry(step)
    elif isinstance(transform, transforms.Resize) or (
        isinstance(transform, ResizeKeepRatio) and _fixed(transform)
    ):
        step = copy.copy(transform)
        step.interpolation = InterpolationMode.NEAREST
        yield step
    elif isinstance(transform, CenterCropOrPad):
        step = copy.copy(transform)
        step.fill = 0
        yield step
    elif isinstance(transform, transforms.CenterCrop | TrimBorder):
        yield transform
    elif not isinstance(transform, _VALUES_ONLY):
        raise ValueError(
            f"cannot bring annotations through {transform!r}: its resizing or cropping is not known; expected an "
            "evaluation transform of timm's or torchvision's (Resize, ResizeKeepRatio, CenterCrop, "
            "CenterCropOrPad, TrimBorder)"
        )


def _fixed(step: ResizeKeepRatio) -> bool:
    return not step.random_scale_prob and not step.random_aspect_prob
