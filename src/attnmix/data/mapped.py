"""Training images with their label maps, which are cropped, flipped and moved as the images are."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from attnmix.data.geometry import FollowedTransform, Stages, resample
from attnmix.data.label_maps import LabelMapStore
from attnmix.data.labelled import LabelledImages

NEIGHBOURS = 4  # cells that bilinear interpolation reads: with k classes each, as many can matter in a new cell


class MappedImages(LabelledImages):
    """A data set whose items are `(transform(image), (label, classes, scores))`.

    `classes` int64 and `scores` float32, `[top, h, w]`: the best classes in every cell of what the transform made
    of the image, the best first. A class that the store does not know of in a cell counts as 0 there, as in
    ReLabel's and TokenLabeling's code, and at most as much as the least that it knows of.

    An image without a map, and one that cannot be read, gives way to the next, as in the data set alone.

    Args:
        images: indexed, with the `transform` that is to be followed; stays as it is.
        store: label maps of the same images.
        where: how the data set is spoken of.
        grid: (h, w) of the maps; the store's by default.
        top: classes in each cell; by default four times the store's, as many as one can inherit.
        wrap: what becomes of (label, classes, scores): a tuple, by default.

    Raises:
        ValueError: a stream; a transform that cannot be followed; label maps of other images.
    """

    def __init__(
        self,
        images: LabelledImages,
        store: LabelMapStore,
        *,
        where: str = "the data set",
        grid: tuple[int, int] | None = None,
        top: int | None = None,
        wrap: Callable[..., Any] = lambda label, classes, scores: (label, classes, scores),
    ) -> None:
        if isinstance(images, IterableDataset):
            raise ValueError(f"label maps go by an image's number, and {where} is a stream: use data in files")
        if not hasattr(images, "transform"):
            raise ValueError(f"label maps need a data set with a transform to follow, and {where} has none")
        store.check_made_for(images, where)
        classes = store.about.num_classes
        self.top = min(classes, NEIGHBOURS * store.about.top) if top is None else top
        if not 1 <= self.top <= classes:
            raise ValueError(f"top is {top}, but must be from 1 to the {classes} classes")
        self.images = copy.copy(images)
        self.images.transform = FollowedTransform(images.transform)
        self.store = store
        self.grid = grid or store.about.grid
        self.wrap = wrap
        self.class_names = images.class_names

    @property
    def unreadable(self) -> list[str]:
        """Names of the files that could not be read so far."""
        return self.images.unreadable

    def name_of(self, index: int) -> str:
        """By what name item `index` is spoken of."""
        return self.images.name_of(index)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} in a data set of {size} images")
        for turn in range(size):
            item = self.read((index + turn) % size)
            if item is not None:
                return item
        raise OSError(f"none of the {size} images can be read and has a label map")

    def read(self, index: int) -> tuple[Any, Any] | None:
        """Item `index`, or None where its image cannot be read or has no map."""
        item = self.images.read(index) if index in self.store else None
        if item is None:
            return None
        (image, stages), label = item
        classes, scores = follow_maps(
            *self.store.read(index),
            stages,
            grid=self.grid,
            top=self.top,
            num_classes=self.store.about.num_classes,
        )
        return image, self.wrap(label, classes, scores)


def follow_maps(
    classes: Tensor,
    scores: Tensor,
    stages: Stages,
    *,
    grid: tuple[int, int],
    top: int,
    num_classes: int,
) -> tuple[Tensor, Tensor]:
    """Label maps of a whole image as those of what its transform made of it.

    Logits are resampled (`resample`) as if they were there for every class, which needs only those that are
    somewhere in the image: the others share one value.

    Args:
        classes: int64 `[k, h, w]`, different ones in a cell.
        scores: float `[k, h, w]`.
        stages: of the transform.
        grid: of the new maps.
        top: classes to keep in each new cell.
        num_classes: of the data set.

    Returns:
        classes and scores `[top, *grid]`, the best first.
    """
    present = torch.unique(classes)
    if len(present) < top:
        is_absent = torch.ones(num_classes, dtype=torch.bool)
        is_absent[present] = False
        absent = is_absent.nonzero().flatten()[: top - len(present)]
        present = torch.cat([present, absent]).sort().values
    floor = scores.amin(dim=0).clamp(max=0.0)
    dense = floor.expand(len(present), -1, -1).scatter(0, torch.searchsorted(present, classes), scores)
    best = resample(dense, stages, grid).topk(top, dim=0)
    return present[best.indices], best.values
