"""What every data set of this package offers, and the two wrappers that give it to timm's."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from attnmix.data.decoding import UNREADABLE, reason, rgb_image

UNREAD = -1
"""Label of what stands in for an unreadable image where it is not to count."""

_logger = logging.getLogger(__name__)


class LabelledImages(Dataset[tuple[Any, int]]):
    """Images with an integer label each: item i is `(transform(RGB image), label)`.

    `class_names[label]` names a label; `unreadable` lists the files found unreadable so far (others were
    served in their place).
    """

    class_names: list[str]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def unreadable(self) -> list[str]:
        """Names of the files that could not be read so far."""
        return []

    def name_of(self, index: int) -> str:
        """By what name item `index` is spoken of: its file, where it has one."""
        return f"image {index}"

    def read(self, index: int) -> tuple[Any, int] | None:
        """Item `index`, or None where its image cannot be read: no other is served in its place."""
        return self[index]

    def read_labelled(self, index: int) -> tuple[Any, int] | None:
        """As `read`, its label checked."""
        found = self.read(index)
        if found is not None:
            self.check_label(index, found[1])
        return found

    def check_label(self, index: int, label: int) -> None:
        """ValueError naming item `index` for a label of no class, as test splits without labels have."""
        if not 0 <= label < self.num_classes:
            raise ValueError(
                f"{self.name_of(index)} has the label {label}, but labels are 0 to {self.num_classes - 1}: "
                "evaluate on a split that has labels"
            )

    def __len__(self) -> int:
        raise NotImplementedError


class ReadableImages(LabelledImages):
    """Serves the next readable image in place of one that cannot be read (`read`: none), and keeps account of it.

    Each unreadable file is warned about once, by name, also when loader workers meet it: the account lies in
    shared memory. More unreadable files than 1 % of the set and than `tolerated`: OSError naming them.

    Args:
        size: number of samples.
        load: index -> (PIL image or open binary file, label).
        name_of: index -> the name by which a file is reported.
        class_names: a name for each label.
        transform: applied to the RGB image.
        tolerated: as many unreadable files end no run, however small the set.
    """

    def __init__(
        self,
        size: int,
        load: Callable[[int], tuple[Any, int]],
        name_of: Callable[[int], str],
        *,
        class_names: list[str],
        transform: Callable[[Image.Image], Any] | None = None,
        tolerated: int = 3,
    ) -> None:
        self.class_names = class_names
        self.transform = transform
        self.allowed_unreadable = max(tolerated, size // 100)
        self._load = load
        self._name_of = name_of
        self._is_unreadable = torch.zeros(size, dtype=torch.bool).share_memory_()

    @property
    def unreadable(self) -> list[str]:
        """Names of the files that could not be read so far, by this process or its loader's workers."""
        return [self._name_of(index) for index in self._is_unreadable.nonzero().flatten().tolist()]

    def __len__(self) -> int:
        return len(self._is_unreadable)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} in a data set of {size} images")
        for candidate in range(index % size, index % size + size):
            try:
                image, label = self._read(candidate % size)
            except UNREADABLE as error:
                self._report(candidate % size, error, "the next one stands in for it")
            else:
                return image if self.transform is None else self.transform(image), label
        raise OSError(f"none of the {size} images can be read: {', '.join(self.unreadable[:5])}")

    def name_of(self, index: int) -> str:
        """The file's name, or the sample's."""
        return self._name_of(index)

    def read(self, index: int) -> tuple[Any, int] | None:
        """Item `index`, or None where its image cannot be read."""
        try:
            image, label = self._read(index)
        except UNREADABLE as error:
            self._report(index, error, "it is left out")
            return None
        return image if self.transform is None else self.transform(image), label

    def _read(self, index: int) -> tuple[Image.Image, int]:
        source, label = self._load(index)
        return rgb_image(source), int(label)

    def _report(self, index: int, error: Exception, then: str) -> None:
        if not self._is_unreadable[index]:
            self._is_unreadable[index] = True
            _logger.warning("unreadable image %s (%s): %s", self._name_of(index), reason(error), then)
        count = int(self._is_unreadable.sum())
        if count > self.allowed_unreadable:
            names = self.unreadable
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise OSError(
                f"{count} of {len(self)} images cannot be read, more than the {self.allowed_unreadable} "
                f"allowed; repair or remove them: {shown}"
            ) from error


class MarkedStandIns(Dataset[tuple[Any, int]]):
    """Labelled images for a measurement: what stands in for an unreadable one has the label `UNREAD`.

    Left out here, it would move the images after it to other batches, and other processes.
    """

    def __init__(self, images: LabelledImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        found = self.images.read_labelled(index)
        return (self.images[index][0], UNREAD) if found is None else found


class StreamedImages(LabelledImages, IterableDataset[tuple[Any, int]]):
    """A timm `IterableImageDataset` (webdataset, Hugging Face streaming, TFDS) with class names.

    Kinds that several processes can share are subclasses (`attnmix.data.streams`).
    """

    can_be_shared = False

    def __init__(self, stream: Any, *, class_names: list[str]) -> None:
        self.stream = stream
        self.class_names = class_names

    @property
    def num_samples(self) -> int | None:
        """Samples of an epoch as the set states them, over all processes; None: it does not say."""
        return getattr(self.stream.reader, "num_samples", None)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return iter(self.stream)

    def __len__(self) -> int:
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's shuffle."""
        self.stream.set_epoch(epoch)

    def share_out(self, *, rank: int, processes: int, workers: int, seed: int) -> int:
        """Settle what this process reads, before a loader is made; may be called again.

        Args:
            rank: this process's number.
            processes: how many read a share each.
            workers: of the loader, which the number of samples depends on.
            seed: of the shuffle, with the epoch.

        Returns:
            the loader's workers: no more than have something to read in evaluation.

        Raises:
            ValueError: several processes, of a kind that they cannot share.
        """
        if processes > 1:
            raise ValueError(f"{processes} processes cannot share this kind of stream")
        self.stream.set_loader_cfg(num_workers=workers)
        return workers
