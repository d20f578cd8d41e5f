"""A run's checkpoint: one file of plain tensors and numbers, replaced in one move.

Written aside, synced, then moved over the old one, so that a crash leaves the last good checkpoint. Loaded
with `weights_only=True`: nothing is ever unpickled into code (Accelerate's `load_state` would).
"""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["get_rng_state", "load_checkpoint", "save_checkpoint", "set_rng_state"]

FORMAT = 1


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (dictionaries and lists of tensors, numbers, strings) to `path`, atomically."""
    aside = path.with_name(path.name + ".part")
    with open(aside, "wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return what `save_checkpoint` wrote, its tensors on the CPU.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the file is no checkpoint of ours, or is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"nothing to resume: there is no checkpoint at {path}; start without --resume")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as a checkpoint: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of attnmix in format {FORMAT}")
    return state


def get_rng_state() -> dict[str, Any]:
    """Return the states of torch's, CUDA's, Python's and NumPy's generators as tensors and numbers."""
    version, python_keys, python_gauss = random.getstate()
    _, numpy_keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, torch.tensor(python_keys), python_gauss],
        "numpy": [torch.from_numpy(np.asarray(numpy_keys).astype(np.int64)), position, has_gauss, gauss],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put back what `get_rng_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    version, python_keys, python_gauss = state["python"]
    random.setstate((version, tuple(python_keys.tolist()), python_gauss))
    numpy_keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", numpy_keys.numpy().astype(np.uint32), position, has_gauss, gauss))
