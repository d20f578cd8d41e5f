"""A run's checkpoint: one file of plain tensors and numbers, the one before kept beside it.

Written aside, synced, then moved into place, so that a crash at any moment leaves a whole one. Loaded with
`weights_only=True`: nothing is ever unpickled into code (Accelerate's `load_state` would). Every byte is checked
against its part's checksum first, which torch does not do.
"""

import contextlib
import os
import pickletools
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

__all__ = [
    "has_checkpoint",
    "load_checkpoint",
    "load_latest",
    "previous_of",
    "save_checkpoint",
    "set_aside",
]

CHECKPOINT = "checkpoint.pt"
FORMAT = 3
READABLE = (2, 3)  # 2: between epochs alone

# What the pickle in a checkpoint of ours names. torch allows more: `bytearray`, say, which fills the memory.
_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_NAMED = {
    "torch._utils _rebuild_tensor_v2",
    "collections OrderedDict",
    *(f"torch {kind}Storage" for kind in _KINDS),
    *(f"torch {name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
}
_NAMING = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}


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


def set_aside(path: Path) -> None:
    """Move a damaged checkpoint away, so that the next one does not take the place of the whole one before."""
    if path.is_file():
        os.replace(path, path.with_name(f"{path.stem}.damaged{path.suffix}"))


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
            _check_archive(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file makes torch's reader raise almost anything
            reason = _line_of(error)[:300] if path.stat().st_size else "it is empty"
            raise ValueError(f"{path} cannot be read as a checkpoint: {reason}") from error
    found = state.get("format") if isinstance(state, dict) else None
    if not isinstance(found, int) or found not in READABLE:
        raise ValueError(f"{path} is not a checkpoint of attnmix in format {FORMAT}")
    return state


def _check_archive(file: BinaryIO) -> None:
    """Refuse what torch's reader takes: parts that are damaged, or compressed beyond the memory; other names."""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        if (
            any(part.compress_type != zipfile.ZIP_STORED for part in parts)
            or sum(p.file_size for p in parts) > size
        ):
            raise ValueError("its parts are compressed, or larger than the file")
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"its part {damaged} is damaged")
        for part in parts:
            if part.filename.lower().endswith(".pkl"):
                for code, name, _ in pickletools.genops(archive.read(part)):
                    if code.name in _NAMING and name not in _NAMED:
                        raise ValueError(f"it names {str(name)[:100]!r}, which no checkpoint of ours does")
    file.seek(0)
