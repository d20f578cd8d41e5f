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

from attnmix.training.reading import recipe_defaults
from attnmix.training.recipe import Recipe

__all__ = [
    "Position",
    "check_can_go_on",
    "get_rng_state",
    "load_checkpoint",
    "load_run",
    "save_checkpoint",
    "save_run",
    "set_rng_state",
]

FORMAT = 2

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
        reason = str(error).partition("\n")[0] if path.stat().st_size else "it is empty"
        raise ValueError(f"{path} cannot be read as a checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of attnmix in format {FORMAT}")
    return state


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of torch's (`device`'s too), Python's and NumPy's generators as tensors and numbers."""
    version, python_keys, python_gauss = random.getstate()
    _, numpy_keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": [version, torch.tensor(python_keys), python_gauss],
        "numpy": [torch.from_numpy(np.asarray(numpy_keys).astype(np.int64)), position, has_gauss, gauss],
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `get_rng_state` returned; `device` may be another one of its kind."""
    torch.set_rng_state(state["torch"])
    if state["device"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
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
    own = {"rng": get_rng_state(accelerator.device), "generator": task.method.generator.get_state()}
    per_process = gather_object([own])
    if not accelerator.is_main_process:
        return
    ema = task.get_eval_model(ema=True) if recipe.ema is not None else None
    state = {
        **dataclasses.asdict(position),
        "recipe": recipe_defaults(recipe),
        "num_processes": accelerator.num_processes,
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
    own = saved["per_process"][accelerator.process_index]
    task.method.generator.set_state(own["generator"])
    set_rng_state(own["rng"], accelerator.device)


def check_can_go_on(saved: dict[str, Any], now: Recipe, *, num_processes: int, path: Path) -> None:
    """Refuse to resume what another recipe, or another number of processes, began.

    Raises:
        ValueError: a key differs that decides results (names it and both values), the run is already longer,
            or its number of processes was another.
    """
    # A key that is newer than the checkpoint: the run had what is its default now.
    before = {**recipe_defaults(Recipe()), **saved["recipe"]}
    for name, value in recipe_defaults(now).items():
        if name not in FREE_ON_RESUME and before[name] != value:
            raise ValueError(
                f"cannot resume {path} with another recipe: {name} was {before[name]!r} and is now "
                f"{value!r}; set it back, or choose another --out"
            )
    if saved["epoch"] > now.epochs:
        raise ValueError(f"the run in {path.parent} already has {saved['epoch']} epochs; epochs is {now.epochs}")
    if saved["num_processes"] != num_processes:
        raise ValueError(
            f"cannot resume {path} with {num_processes} processes: it was made with {saved['num_processes']}, "
            "and their number decides the batches; start as many, or choose another --out"
        )
