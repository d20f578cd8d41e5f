"""Which annotation belongs to which image, by file names; and how large the image's original is."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Generic, TypeVar

from PIL import Image
from torch.utils.data import IterableDataset

from attnmix.data.decoding import MOST_UNEVEN, UNREADABLE
from attnmix.data.labelled import LabelledImages

Entry = TypeVar("Entry")

MOST_PIXELS = 2**27  # of an image; Pillow opens none of many more


class AnnotationIndex(Generic[Entry]):
    """Finds an image's annotation by the last part of its name; of several, the one whose folders agree furthest.

    Args:
        entries: (file name, with or without folders; what is found by it).
        suffix: whether names must agree in their suffix too; without: 1.jpg finds 1.xml.
    """

    def __init__(self, entries: Iterable[tuple[str, Entry]], *, suffix: bool) -> None:
        self._suffix = suffix
        self._shared: set[str] = set()  # keys of several images: 1.jpg in each class folder
        self._entries: dict[str, list[tuple[str, Entry]]] = {}
        for name, entry in entries:
            self._entries.setdefault(self._key(name), []).append((name, entry))

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def find(self, name: str) -> Entry | None:
        """The annotation of the image of that name, or None; after `check` also where it must be another image's.

        Raises ValueError where several could be meant.
        """
        key = self._key(name)
        found = self._entries.get(key, [])
        agreeing = [_common_folders(name, candidate) for candidate, _ in found]
        if key in self._shared and max(agreeing, default=0) == 0:
            return None  # it is another image's
        if len(found) < 2:
            return found[0][1] if found else None
        best = [number for number, count in enumerate(agreeing) if count == max(agreeing)]
        if len(best) > 1:
            either = " or ".join(repr(found[number][0]) for number in best[:2])
            raise ValueError(f"{name}: {either} could be its annotation; give them the folders of the images")
        return found[best[0]][1]

    def check(self, images: LabelledImages, where: str) -> None:
        """ValueError unless one image at least has an annotation."""
        if isinstance(images, IterableDataset):
            raise ValueError(f"the images are a stream, without file names to find annotations by in {where}")
        counts = Counter(self._key(name) for name in _names(images))
        self._shared = {key for key, count in counts.items() if count > 1}
        if not any(key in self._entries for key in counts):
            wanted = (
                f"a file name {PurePath(images.name_of(0)).name!r}" if self._suffix else "an .xml of that stem"
            )
            raise ValueError(
                f"none of the {len(images)} images has an annotation in {where}, which holds {len(self)}: "
                f"looked for {wanted} for {images.name_of(0)}, and so on"
            )

    def _key(self, name: str) -> str:
        if self._suffix:
            return PurePath(name).name
        # some copies of ImageNet append the class: ILSVRC2012_val_00000001_n01440764
        return re.sub(r"^(ILSVRC2012_val_\d{8})_n\d{8}$", r"\1", PurePath(name).stem)


def original_size(name: str, declared: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the image file `name`; what its annotation declares where there is no such file."""
    if not Path(name).is_file():
        return declared
    try:
        with Image.open(name) as image:  # the header alone
            return image.height, image.width
    except UNREADABLE:
        return declared  # nobody sees an unreadable image


def check_size(height: int, width: int, where: str) -> None:
    """Raise ValueError for a height and a width that a file declares and no image has."""
    least, most = sorted((height, width))
    if least < 1 or height * width > MOST_PIXELS or most > MOST_UNEVEN * least:
        raise ValueError(f"{where} of height {height} and width {width}")


def _names(images: LabelledImages) -> Iterator[str]:
    return (images.name_of(number) for number in range(len(images)))


def _common_folders(one: str, other: str) -> int:
    count = 0
    for left, right in zip(PurePath(one).parts[-2::-1], PurePath(other).parts[-2::-1], strict=False):
        if left != right:
            break
        count += 1
    return count
