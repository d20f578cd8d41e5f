"""A run's checkpoint: one file of plain tensors and numbers, the one before kept beside it.

Written aside, synced, then moved into place, so that a crash at any moment leaves a whole one. Loaded with
`weights_only=True`: nothing is ever unpickled into code (Accelerate's `load_state` would).
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "has_checkpoint",
    "load_checkpoint",
    "load_latest",
    "previous_of",
    "save_checkpoint",
]

CHECKPOINT = "checkpoint.pt"
FORMAT = 3
READABLE = (2, 3)  # 2: between epochs alone


def has_checkpoint(out: str | os.PathLike[str]) -> bool:
    """Whether the folder `out` holds a run that can be resumed."""
    path = Path(out) / CHECKPOINT
    return path.is_file() or previous_of(path).is_file()


def previous_of(path: Path) -> Path:
    """Where the checkpoint before the last one is."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (dictionaries and lists of tensors, numbers, strings) to `path`, atomically.

    The one that was there is kept as `previous_of(path)`.

    Raises:
        OSError: it cannot be written; what there was is still there.
    """
    aside = path.with_name(path.name + ".part")
    try:
        with open(aside, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            _keep(path)
        os.replace(aside, path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch raises the latter where its writer cannot go on
        with contextlib.suppress(OSError):
            aside.unlink()
        kept = f"; the last whole checkpoint is {path}" if path.is_file() else ""
        raise OSError(f"the checkpoint {path} cannot be written ({_line_of(error)}){kept}") from error


def _keep(path: Path) -> None:
    """Put a second name on the file: at no moment is there no checkpoint."""
    link = path.with_name(path.name + ".kept")
    with contextlib.suppress(OSError):
        link.unlink()
    try:
        os.link(path, link)
    except OSError:  # a file system without hard links: a moment without `path`, but never without both
        os.replace(path, previous_of(path))
    else:
        os.replace(link, previous_of(path))


def _sync_folder(folder: Path) -> None:
    """Make moves within a folder survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _line_of(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def load_latest(out: Path) -> tuple[dict[str, Any], str | None]:
    """The run's last whole checkpoint; and what to tell where that is the one before the last.

    Raises:
        FileNotFoundError: there is none.
        ValueError: none that can be read.
    """
    path = out / CHECKPOINT
    try:
        return load_checkpoint(path), None
    except (FileNotFoundError, ValueError) as error:
        if not previous_of(path).is_file():
            raise
        return load_checkpoint(previous_of(path)), f"{error}: going on from the one before, {previous_of(path)}"


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return what `save_checkpoint` wrote, its tensors on the CPU.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the file is no checkpoint of ours, or is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"nothing to resume: there is no checkpoint at {path}; start without --resume")
    with open(path, "rb") as file:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file makes torch's reader raise almost anything
            reason = _line_of(error) if path.stat().st_size else "it is empty"
            raise ValueError(f"{path} cannot be read as a checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") not in READABLE:
        raise ValueError(f"{path} is not a checkpoint of attnmix in format {FORMAT}")
    return state
