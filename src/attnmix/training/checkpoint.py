"""A run's checkpoint: one file of plain tensors and numbers, replaced in one move.

Written aside, synced, then moved over the old one, so that a crash leaves the last good checkpoint. Loaded
with `weights_only=True`: nothing is ever unpickled into code (Accelerate's `load_state` would).
"""

import dataclasses
import os
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from attnmix.training.recipe import Recipe, recipe_defaults

__all__ = [
    "Position",
    "check_same_recipe",
    "get_rng_state",
    "load_checkpoint",
    "load_run",
    "save_checkpoint",
    "save_run",
    "set_rng_state",
]

FORMAT = 1

# What may differ when a run is resumed: how long it goes on, and what changes speed but not results.
FREE_ON_RESUME = (
    "epochs",
    "device",
    "threads",
    "eval_every",
    "checkpoint_every",
    "loader.workers",
    "loader.pin",
)


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


@dataclass
class Position:
    """How far a run has come: epochs and updates done, and an entry per epoch."""

    epoch: int
    updates: int
    history: list[dict[str, float]]


def save_run(
    path: Path,
    task: Any,
    optimizer: Any,
    position: Position,
    *,
    accelerator: Accelerator,
    recipe: Recipe,
) -> None:
    """Gather the run's whole state from all processes and write it, on the main one."""
    # What each process has of its own: its random states and its method's generator.
    per_process = gather_object([{"rng": get_rng_state(), "task": task.get_task_state()}])
    if not accelerator.is_main_process:
        return
    ema = task.get_eval_model(ema=True) if recipe.ema is not None else None
    state = {
        **dataclasses.asdict(position),
        "recipe": recipe_defaults(recipe),
        "trainable": task.get_trainable_module().state_dict(),
        "ema": None if ema is None else ema.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": None if accelerator.scaler is None else accelerator.scaler.state_dict(),
        "per_process": per_process,
    }
    save_checkpoint(path, state)


def load_run(saved: dict[str, Any], task: Any, optimizer: Any, *, accelerator: Accelerator) -> None:
    """Put everything back as `save_run` found it. The schedule has no state: it follows the update count."""
    task.get_trainable_module().load_state_dict(saved["trainable"])
    if saved["ema"] is not None:
        task.get_eval_model(ema=True).load_state_dict(saved["ema"])
    optimizer.load_state_dict(saved["optimizer"])
    if accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(saved["scaler"])
    mine = saved["per_process"]
    if len(mine) == accelerator.num_processes:  # with another number, each process draws afresh
        task.load_task_state(mine[accelerator.process_index]["task"])
        set_rng_state(mine[accelerator.process_index]["rng"])


def check_same_recipe(before: dict[str, Any], now: Recipe, *, path: Path) -> None:
    """Refuse to resume what another recipe began.

    Raises:
        ValueError: a key differs that decides results; names it and both values.
    """
    for name, value in recipe_defaults(now).items():
        if name not in FREE_ON_RESUME and before.get(name) != value:
            raise ValueError(
                f"cannot resume {path} with another recipe: {name} was {before.get(name)!r} and is now "
                f"{value!r}; set it back, or choose another --out"
            )
