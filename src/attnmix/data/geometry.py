"""Where the pixels of a transformed image come from: timm's transforms, followed step by step.

Places are relative: (0, 0) is the top left corner of an image, (1, 1) its bottom right one, whatever its size.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from timm.data.auto_augment import AugmentOp, AutoAugment, RandAugment
from torch import Tensor
from torchvision.transforms import Compose

Stage = NDArray[np.float64]  # [2, 3]: a place (x, y, 1) after a step -> the place (x, y) before it
Stages = list[Stage]

_EDGE = 1e-6


class FollowedTransform:
    """A transform that also tells where its pixels come from: image -> (what the transform gives, stages).

    The transform's own steps run, and draw what they would draw. Crops, flips and resizing are followed, and the
    shears, shifts and rotations of RandAugment and AutoAugment; AugMix, which blends several moved copies into
    the image, counts as unmoved, and so does what Random Erasing covers.

    Args:
        transform: of `create_transforms`, or any composition of the same steps; None gives the image itself.

    Raises:
        ValueError: a step of which it is not known whether it moves pixels.
    """

    def __init__(self, transform: Callable[[Image.Image], Any] | None) -> None:
        self.steps = _flat(transform)
        for step in self.steps:
            if _kind(step) not in _MOVING and _kind(step) not in _UNMOVED:
                known = ", ".join(sorted({*_MOVING, *_UNMOVED}))
                raise ValueError(
                    f"label maps cannot follow an image through {_kind(step)}, which may move its pixels; "
                    f"known steps: {known}"
                )

    def __call__(self, image: Any) -> tuple[Any, Stages]:
        """Transform a PIL image; stages are those of the steps that moved something, in order."""
        stages: Stages = []
        for step in self.steps:
            follow = _MOVING.get(_kind(step))
            image = step(image) if follow is None else follow(step, image, stages)
        return image, stages


def resample(maps: Tensor, stages: Stages, size: tuple[int, int]) -> Tensor:
    """Maps of a whole image as maps of what became of it: `[C, h, w]` float -> `[C, *size]`.

    RoI-align: each new cell is the mean over a regular grid of places in it, one for every old cell that it is
    wide and high, each read by bilinear interpolation; for a crop exactly `torchvision.ops.roi_align` (aligned).
    What lies outside the image, or was shifted in from outside a crop, is 0.
    """
    height, width = size
    whole = np.eye(3)
    for stage in stages:
        whole = whole @ np.vstack([stage, [0.0, 0.0, 1.0]])
    # old cells that one step along a side of a new cell passes
    cells = np.abs(whole[:2, :2]) * np.array([[maps.shape[2]], [maps.shape[1]]]) / np.array([width, height])
    across, down = (max(1, math.ceil(round(float(count), 6))) for count in cells.max(axis=0))
    x = (np.arange(width * across) + 0.5) / (width * across)
    y = (np.arange(height * down) + 0.5) / (height * down)
    places = np.stack(np.broadcast_arrays(x[None, :], y[:, None], 1.0))  # [3, H, W]
    seen = np.ones(places.shape[1:], dtype=bool)
    for stage in reversed(stages):
        places = np.concatenate([np.einsum("ij,jhw->ihw", stage, places), places[2:]])
        seen &= ((places[:2] >= -_EDGE) & (places[:2] <= 1 + _EDGE)).all(axis=0)
    grid = torch.from_numpy(2 * places[:2] - 1).to(maps.dtype).permute(1, 2, 0)
    found = F.grid_sample(maps[None], grid[None], mode="bilinear", padding_mode="border", align_corners=False)
    if not seen.all():
        found = found * torch.from_numpy(seen).to(maps.dtype)
    return F.avg_pool2d(found, (down, across))[0]


# ------------------------------------------------------------------ the steps


def _flat(transform: Any) -> list[Any]:
    if transform is None:
        return []
    if isinstance(transform, Compose):
        return [inner for step in transform.transforms for inner in _flat(step)]
    return [transform]


def _kind(step: Any) -> str:
    return type(step).__name__


def _box(left: float, top: float, width: float, height: float, of: tuple[int, int]) -> Stage:
    """A box in pixels of an image of (width, height) `of`."""
    return np.array([[width / of[0], 0, left / of[0]], [0, height / of[1], top / of[1]]])


def _random_crop(step: Any, image: Image.Image, stages: Stages) -> Any:
    """timm's or torchvision's resized crop, which asks its `get_params` for the box."""
    listening = copy.copy(step)

    def get_params(*arguments: Any) -> tuple[int, int, int, int]:
        top, left, height, width = step.get_params(*arguments)
        stages.append(_box(left, top, width, height, of=image.size))
        return top, left, height, width

    listening.get_params = get_params
    return listening(image)


def _centre_crop(step: Any, image: Image.Image, stages: Stages) -> Any:
    """A crop in the middle, padded where the image is smaller."""
    cropped = step(image)

    def start(whole: int, kept: int) -> int:
        return round((whole - kept) / 2) if whole >= kept else -((kept - whole) // 2)

    left, top = (start(whole, kept) for whole, kept in zip(image.size, cropped.size, strict=True))
    width, height = cropped.size
    stages.append(_box(left, top, width, height, of=image.size))
    return cropped


def _flip(step: Any, image: Image.Image, stages: Stages, *, mirror: Stage) -> Any:
    flipped = step(image)
    if flipped is not image:  # torchvision gives the image itself back where it does nothing
        stages.append(mirror)
    return flipped


def _policy(step: RandAugment | AutoAugment, image: Image.Image, stages: Stages) -> Any:
    listening = copy.copy(step)
    if isinstance(listening, RandAugment):
        listening.ops = [_listening(op, stages) for op in listening.ops]
    else:
        listening.policy = [[_listening(op, stages) for op in ops] for ops in listening.policy]
    return listening(image)


def _listening(op: AugmentOp, stages: Stages) -> AugmentOp:
    matrix = _OPERATIONS.get(op.aug_fn.__name__)
    if matrix is None:
        return op
    listening, apply = copy.copy(op), op.aug_fn

    def aug_fn(image: Image.Image, amount: float, **options: Any) -> Image.Image:
        stages.append(_relative(matrix(amount, *image.size), *image.size))
        return apply(image, amount, **options)

    listening.aug_fn = aug_fn
    return listening


def _relative(matrix: Any, width: int, height: int) -> Stage:
    """A map of pixels `[2, 3]` as a map of relative places."""
    scale = np.diag([width, height, 1.0])
    return np.linalg.inv(scale[:2, :2]) @ np.asarray(matrix, dtype=float) @ scale


def _rotation(degrees: float, width: int, height: int) -> Stage:
    """Pillow's: counter-clockwise about the centre."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = np.array([[cosine, -sine], [sine, cosine]])
    centre = np.array([width / 2, height / 2])
    return np.column_stack([turn, centre - turn @ centre])


# timm's names: amount, width, height -> where a pixel comes from
_OPERATIONS: dict[str, Callable[[float, int, int], Any]] = {
    "shear_x": lambda amount, width, height: [[1, amount, 0], [0, 1, 0]],
    "shear_y": lambda amount, width, height: [[1, 0, 0], [amount, 1, 0]],
    "translate_x_rel": lambda amount, width, height: [[1, 0, amount * width], [0, 1, 0]],
    "translate_y_rel": lambda amount, width, height: [[1, 0, 0], [0, 1, amount * height]],
    "translate_x_abs": lambda amount, width, height: [[1, 0, amount], [0, 1, 0]],
    "translate_y_abs": lambda amount, width, height: [[1, 0, 0], [0, 1, amount]],
    "rotate": _rotation,
}

_MOVING: dict[str, Callable[..., Any]] = {
    "RandomResizedCropAndInterpolation": _random_crop,
    "RandomResizedCrop": _random_crop,
    "CenterCrop": _centre_crop,
    "CenterCropOrPad": _centre_crop,
    "RandomHorizontalFlip": partial(_flip, mirror=np.array([[-1.0, 0, 1], [0, 1, 0]])),
    "RandomVerticalFlip": partial(_flip, mirror=np.array([[1.0, 0, 0], [0, -1, 1]])),
    "RandAugment": _policy,
    "AutoAugment": _policy,
}

# Resizing stretches the whole image: every place stays where it is.
_UNMOVED = {
    "Resize", "ResizeKeepRatio", "ColorJitter", "Grayscale", "RandomGrayscale", "GaussianBlur", "AugMixAugment",
    "ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToNumpy", "Normalize", "RandomErasing",
}  # fmt: skip
