"""Label maps on disk: what a teacher sees in every place of each image of a data set.

A folder of three files, made by `attnmix maps` and read while training:

- `scores.npy`, float16 `[n, k, h, w]`: the logits of the k best classes in every cell of a grid over the whole
  image, the best first;
- `classes.npy`, uint16 (int32 beyond 65536 classes) of the same shape: which classes these are;
- `maps.json`: what they are of, and who made them.

Plain NumPy files, read without pickle: nothing in them can run code.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from attnmix.data.labelled import LabelledImages

FORMAT = 1
ABOUT, SCORES, CLASSES = "maps.json", "scores.npy", "classes.npy"
AGAIN = "make the maps again"  # the way out of damage
LOOKED_AT = 64  # images whose maps are looked through at opening


@dataclass(frozen=True)
class AboutMaps:
    """What the maps of a folder are.

    Attributes:
        count: images.
        grid: (height, width) of a map.
        top: classes in each cell.
        num_classes: of the data set.
        class_names: by number.
        data: how the data set was spoken of.
        digest: of the data set's items, in order (`digest_of`).
        teacher: who gave the scores.
        image_size: (height, width) of the images that the teacher saw.
        resized: how they came to that size.
        missing: images that could not be read; their maps are all zero.
    """

    count: int
    grid: tuple[int, int]
    top: int
    num_classes: int
    class_names: tuple[str, ...]
    data: str
    digest: str
    teacher: str
    image_size: tuple[int, int]
    resized: str
    missing: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of both arrays: `[n, k, h, w]`."""
        return (self.count, self.top, *self.grid)

    @property
    def class_type(self) -> np.dtype[Any]:
        """The type that holds every class number."""
        return np.dtype(np.uint16 if self.num_classes <= 2**16 else np.int32)

    @property
    def bytes(self) -> int:
        """Of both arrays on disk."""
        return int(np.prod(self.shape)) * (2 + self.class_type.itemsize)


class LabelMapStore:
    """Label maps of a data set, read from a folder one image at a time.

    Everything but the maps' own values is checked here, and the values of a few of them; `read` checks the rest.

    Args:
        folder: made by `attnmix maps`.

    Attributes:
        about: what the maps are.

    Raises:
        FileNotFoundError: no such folder, or one that is not finished.
        ValueError: a file that is damaged, cut short or does not go with the others; names it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / ABOUT).is_file():
            raise FileNotFoundError(f"no label maps in {str(self.folder)!r}: {_why_none(self.folder)}")
        for name in (ABOUT, SCORES, CLASSES):
            if self.folder.resolve() not in (self.folder / name).resolve().parents:
                raise ValueError(f"{self.folder / name} leads out of its folder: copy the file itself there")
        self.about = read_about(self.folder / ABOUT)
        self.scores = _open_array(self.folder / SCORES, self.about.shape, np.dtype(np.float16))
        self.classes = _open_array(self.folder / CLASSES, self.about.shape, self.about.class_type)
        self._missing = frozenset(self.about.missing)
        for index in np.unique(np.linspace(0, self.about.count - 1, LOOKED_AT).astype(int)):
            self.read(int(index))

    def __reduce__(self) -> tuple[type["LabelMapStore"], tuple[Path]]:
        return LabelMapStore, (self.folder,)  # a spawned worker opens the files itself: the arrays stay here

    def __len__(self) -> int:
        return self.about.count

    def __contains__(self, index: int) -> bool:
        """Whether image `index` could be read when the maps were made."""
        return index not in self._missing

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """The maps of image `index`: classes `[k, h, w]` int64 and scores `[k, h, w]` float32.

        Raises:
            ValueError: a class number out of range, or a score that is no number; names file and image.
        """
        classes = np.asarray(self.classes[index]).astype(np.int64)
        scores = np.asarray(self.scores[index]).astype(np.float32)
        low, high = int(classes.min()), int(classes.max())
        if low < 0 or high >= self.about.num_classes:
            raise ValueError(
                f"{self.folder / CLASSES} holds class {low if low < 0 else high} for image {index}, but there are "
                f"{self.about.num_classes}: make the maps again"
            )
        if not np.isfinite(scores).all():
            raise ValueError(
                f"{self.folder / SCORES} holds scores for image {index} that are no numbers: make the maps again"
            )
        return torch.from_numpy(classes), torch.from_numpy(scores)

    def check_made_for(self, images: LabelledImages, where: str) -> None:
        """Check that the maps are of this data set.

        Raises:
            ValueError: another number of images, other classes, or other images in another order.
        """
        own = self.about.data
        other = "with the data_options (counts, seed) that they were made with" if where == own else f"on {own}"
        again = f"make them for this data with `attnmix maps`, or train {other}"
        ours = f"the label maps in {str(self.folder)!r} are of {self.about.data}"
        if len(images) != self.about.count:
            raise ValueError(f"{ours}, {self.about.count} images, and {where} has {len(images)}: {again}")
        if images.num_classes != self.about.num_classes:
            raise ValueError(
                f"{ours}, {self.about.num_classes} classes, and {where} has {images.num_classes}: {again}"
            )
        if digest_of(images) != self.about.digest:
            raise ValueError(f"{ours}, and {where} has other images, classes or another order of them: {again}")


def digest_of(images: LabelledImages) -> str:
    """A short word for what items a data set has, in which order.

    Of files, their folder's name and their own, so that a data set may move; of data made in memory, which has no
    files, the labels and some of the pictures. The names of the classes count in both.
    """
    found = hashlib.sha256(json.dumps([str(name) for name in images.class_names]).encode())
    pictures = getattr(images, "images", None)
    if isinstance(pictures, Tensor):
        some = torch.linspace(0, len(pictures) - 1, min(len(pictures), LOOKED_AT)).long()
        for part in (torch.tensor(pictures.shape), getattr(images, "labels", torch.empty(0)), pictures[some]):
            found.update(part.contiguous().numpy().tobytes())
    else:
        for index in range(len(images)):
            name = "/".join(Path(images.name_of(index)).parts[-2:])
            found.update(f"{name}\n".encode("utf-8", "surrogateescape"))
    return found.hexdigest()[:32]


# ------------------------------------------------------------------ reading


def read_about(path: Path, way_out: str = AGAIN) -> AboutMaps:
    """Read `maps.json`; `way_out` is what to do where it is damaged.

    Raises:
        ValueError: broken, of another format, or with a value that cannot be; names the file, and the key if one.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, MemoryError) as error:  # a number of too many digits, brackets in brackets
        raise ValueError(f"{path} cannot be read as JSON ({line_of(error)}): {way_out}") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError(f"{path} does not describe label maps in format {FORMAT}: {way_out}")
    return about_from(told, str(path), way_out)


def about_from(told: Mapping[str, Any], where: str, way_out: str = AGAIN) -> AboutMaps:
    """What a file says of the maps, its values checked.

    Raises:
        ValueError: naming `where` and the key.
    """
    kinds = {name: field.type for name, field in AboutMaps.__dataclass_fields__.items()}
    values: dict[str, Any] = {}
    for key, kind in kinds.items():
        value: Any = told.get(key)
        many = isinstance(value, list)
        if kind is int:
            right = is_count(value, 1)
        elif kind is str:
            right = isinstance(value, str)
        elif key == "missing":
            right = many and all(is_count(item, 0) for item in value)
        elif key == "class_names":
            right = many and all(isinstance(item, str) for item in value)
        else:
            right = many and len(value) == 2 and all(is_count(item, 1) for item in value)
        if not right:
            raise ValueError(f"{where}: {key} is {short(value)}, which cannot be: {way_out}")
        values[key] = tuple(value) if many else value
    about = AboutMaps(**values)
    if about.top > about.num_classes or len(about.class_names) != about.num_classes:
        raise ValueError(
            f"{where}: top {about.top} and {len(about.class_names)} class names do not go with num_classes "
            f"{about.num_classes}: {way_out}"
        )
    if any(index >= about.count for index in about.missing):
        raise ValueError(f"{where}: missing names images beyond the {about.count}: {way_out}")
    return about


def part_of(folder: Path) -> Path:
    """Where maps lie until all of them are there."""
    whole = folder if folder.name not in ("", "..") else folder.resolve()  # `.` has no name
    return whole.parent / f"{whole.name}.part"


def is_count(value: Any, least: int) -> bool:
    """Whether a value from a file is a whole number of sensible size."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**40


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _why_none(folder: Path) -> str:
    if part_of(folder).is_dir():
        return f"{part_of(folder)} is not finished; the command that began it goes on with it"
    return f"there is no {ABOUT}; `attnmix maps` makes them"


def _open_array(path: Path, shape: Sequence[int], kind: np.dtype[Any]) -> NDArray[Any]:
    """A .npy file as memory: opened without pickle, its shape, type and length checked."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: {AGAIN}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes beyond all numbers
            found = npy.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # a header is parsed as Python: whatever its parser can raise
        raise ValueError(f"{path} is damaged or cut short ({line_of(error)}): {AGAIN}") from error
    if found.shape != tuple(shape) or found.dtype != kind:
        raise ValueError(
            f"{path} holds {found.dtype} of shape {found.shape}, but {ABOUT} says {kind} of {tuple(shape)}: "
            f"{AGAIN}"
        )
    return found


def line_of(error: Exception) -> str:
    """What an error says, in one line that is not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."
