"""Writes label maps, so that an interrupted writer goes on where it stopped."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from attnmix.data.label_maps import (
    ABOUT,
    CLASSES,
    FORMAT,
    SCORES,
    AboutMaps,
    LabelMapStore,
    is_count,
    line_of,
    part_of,
    read_about,
    short,
)

PROGRESS = "progress.json"


class LabelMapWriter:
    """Writes label maps in the data set's order, aside in `FOLDER.part` until `finish` moves them into place.

    What was written before an interruption is gone on with: begin at `done`. Use it as a context, which keeps
    what there is, however it ends.

    Args:
        folder: of the finished maps; must not be there yet.
        about: what they are; `missing` is found while writing.

    Attributes:
        done: images written so far.

    Raises:
        FileExistsError: the folder is there already.
        ValueError: `FOLDER.part` was begun for other maps, or is damaged; no room on the disk.
    """

    def __init__(self, folder: str | os.PathLike[str], about: AboutMaps) -> None:
        self.folder, self.about = Path(folder), about
        self.part = part_of(self.folder)
        if self.folder.exists():
            what = "label maps" if (self.folder / ABOUT).is_file() else "something else"
            raise FileExistsError(f"{self.folder} is there already and holds {what}: choose another --out")
        self.done, self._missing = 0, list[int]()
        if (self.part / PROGRESS).is_file():
            self._go_on()
        self._check_room()
        self.part.mkdir(parents=True, exist_ok=True)
        kinds = {SCORES: np.dtype(np.float16), CLASSES: about.class_type}
        self._files = {name: self._open(name, kind) for name, kind in kinds.items()}

    def __enter__(self) -> "LabelMapWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, scores: Tensor, classes: Tensor, readable: Sequence[bool]) -> None:
        """Append maps of the next images: float and int64 `[B, k, h, w]`; not readable: written as zeros.

        Raises:
            ValueError: scores that are no numbers.
        """
        if not scores.isfinite().all():
            raise ValueError(f"the teacher {self.about.teacher} gives scores that are no numbers")
        known = torch.tensor(list(readable), dtype=torch.bool)[:, None, None, None]
        limit = float(np.finfo(np.float16).max)
        arrays = {
            SCORES: (scores.float().clamp(-limit, limit) * known).numpy().astype(np.float16),
            CLASSES: (classes * known).numpy().astype(self.about.class_type),
        }
        for name, array in arrays.items():
            self._files[name].write(np.ascontiguousarray(array).tobytes())
        self._missing += [self.done + place for place, is_there in enumerate(readable) if not is_there]
        self.done += len(scores)

    def save(self) -> None:
        """Make sure that what was written survives a crash; takes a moment."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self._note_progress()

    def finish(self) -> LabelMapStore:
        """Move the maps into place, all of which must be written, and open them."""
        if self.done != self.about.count:
            raise ValueError(f"{self.done} of {self.about.count} label maps are written")
        self._close()
        _write_json(self.part / ABOUT, {"format": FORMAT, **asdict(self.about), "missing": self._missing})
        (self.part / PROGRESS).unlink()
        os.replace(self.part, self.folder)
        return LabelMapStore(self.folder)

    def _close(self) -> None:
        if all(not file.closed for file in self._files.values()):
            self.save()
            for file in self._files.values():
                file.close()

    def _note_progress(self) -> None:
        told = {"format": FORMAT, **asdict(self.about), "missing": self._missing, "done": self.done}
        _write_json(self.part / PROGRESS, told)

    def _go_on(self) -> None:
        path = self.part / PROGRESS
        told = _plain(read_about(path, way_out=f"remove {self.part} and begin again"))
        done = json.loads(path.read_text(encoding="utf-8")).get("done")
        if not is_count(done, 0) or done > self.about.count:
            raise ValueError(f"{path}: done is {short(done)}, which cannot be: remove {self.part}")
        ours = _plain(self.about)
        for key, value in ours.items():
            if key != "missing" and told[key] != value:
                raise ValueError(
                    f"{self.part} was begun with {key} {short(told[key])}, not {short(value)}: give the same "
                    "command again, remove it, or choose another --out"
                )
        self.done, self._missing = done, [index for index in told["missing"] if index < done]

    def _open(self, name: str, kind: np.dtype[Any]) -> Any:
        path = self.part / name
        if not self.done:
            file: Any = open(path, "wb")  # noqa: SIM115 (closed with the writer)
            header = {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": self.about.shape}
            npy.write_array_header_2_0(file, header)
            return file
        if not path.is_file():
            raise ValueError(f"{path} is missing: remove {self.part} and begin again")
        file = open(path, "rb+")  # noqa: SIM115 (closed with the writer)
        try:
            npy.read_magic(file)
            npy.read_array_header_2_0(file)
        except Exception as error:  # a header is parsed as Python: whatever its parser can raise
            file.close()
            if isinstance(error, OSError):
                raise
            raise ValueError(
                f"{path} is damaged ({line_of(error)}): remove {self.part} and begin again"
            ) from error
        end = file.tell() + self.done * int(np.prod(self.about.shape[1:])) * kind.itemsize
        if path.stat().st_size < end:
            file.close()
            raise ValueError(f"{path} is cut short: remove {self.part} and begin again")
        file.truncate(end)  # beyond lies what was written after progress was last noted
        file.seek(end)
        return file

    def _check_room(self) -> None:
        there = next(parent for parent in (self.part, *self.part.absolute().parents) if parent.is_dir())
        needed = self.about.bytes * (1 - self.done / self.about.count)
        free = shutil.disk_usage(there).free
        if needed > free:
            raise ValueError(
                f"label maps of {self.about.count} images with {self.about.grid[0]} x {self.about.grid[1]} cells "
                f"take {needed / 1e9:.1f} GB more, and {there} has {free / 1e9:.1f} GB free: choose another "
                "--out, or a lower --top or --image_size"
            )


def _plain(about: AboutMaps) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(about)))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    aside = path.with_name(path.name + ".aside")
    aside.write_text(json.dumps(value, indent=1), encoding="utf-8")
    os.replace(aside, path)
