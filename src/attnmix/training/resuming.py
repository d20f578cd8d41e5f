"""A run's whole state: into a checkpoint, and back, in the middle of an epoch too."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from attnmix.training.checkpoint import save_checkpoint
from attnmix.training.plain_yaml import shown
from attnmix.training.random_states import get_rng_state, set_rng_state
from attnmix.training.reading import recipe_defaults
from attnmix.training.recipe import Recipe
from attnmix.training.saved_form import check_optimizer, check_own, check_saved
from attnmix.training.sharding import in_parts, optimizer_in_parts, whole
from attnmix.training.sums import EpochSums

__all__ = ["FREE_ON_RESUME", "Position", "differences", "load_run", "refuse_changes", "save_run"]

# What may differ when a run is resumed: how long it goes on, and what changes speed or looks but not results.
FREE_ON_RESUME = (
    "epochs",
    "device",
    "threads",
    "eval_every",
    "checkpoint_every",
    "checkpoint_minutes",
    "grad_checkpointing",
    "fsdp",
    "nonfinite",
    "trackers",
    "loader.workers",
    "loader.pin",
)


@dataclass
class Position:
    """How far a run has come.

    Attributes:
        epoch: epochs done.
        batch: batches done of the next one.
        updates: of the weights, so far.
        history: an entry per epoch.
    """

    epoch: int = 0
    batch: int = 0
    updates: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def save_run(
    path: Path,
    task: Any,
    optimizer: Any,
    position: Position,
    *,
    accelerator: Accelerator,
    recipe: Recipe,
    sums: EpochSums | None = None,
) -> None:
    """Gather the run's whole state from all processes and write it, on the main one.

    Args:
        path: of the checkpoint.
        task: the `MixTask`.
        optimizer: its optimizer.
        position: how far it is.
        accelerator: of the run.
        recipe: of the run.
        sums: of the epoch that it is in the middle of.
    """
    # What each process has of its own: its random states, its method's generators, what it has added up.
    own = {"rng": get_rng_state(accelerator.device), **task.method.get_draws()}
    if sums is not None:
        own["sums"] = sums.state()
    per_process = gather_object([own])
    ema = task.get_eval_model(ema=True) if recipe.ema is not None else None
    parts = {
        "trainable": task.get_trainable_module().state_dict(),
        "ema": None if ema is None else ema.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    parts = whole(parts, keep=accelerator.is_main_process)
    if not accelerator.is_main_process:
        return
    state = {
        **dataclasses.asdict(position),
        "recipe": recipe_defaults(recipe),
        "num_processes": accelerator.num_processes,
        **parts,
        "scaler": None if accelerator.scaler is None else accelerator.scaler.state_dict(),
        "per_process": per_process,
    }
    save_checkpoint(path, state)


def load_run(
    saved: dict[str, Any], task: Any, optimizer: Any, *, accelerator: Accelerator, recipe: Recipe
) -> tuple[Position, dict[str, Any] | None]:
    """Put everything back as `save_run` found it; returns how far it was, and the sums of an epoch begun.

    The schedule has no state: it follows the update count. A process more than there were begins with draws of
    its own.

    Raises:
        ValueError: the checkpoint is of another model, method or optimizer.
    """
    try:
        check_saved(saved)
        _load_weights(task.get_trainable_module(), saved["trainable"])
        if saved["ema"] is not None and task.has_ema():
            _load_weights(task.get_eval_model(ema=True), saved["ema"])
        check_optimizer(saved["optimizer"], optimizer)
        wanted = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        optimizer.load_state_dict(optimizer_in_parts(saved["optimizer"], optimizer))
        if any(name.startswith("optimizer.") for name in differences(saved, recipe)):  # forced
            for group, options in zip(optimizer.param_groups, wanted, strict=True):
                group.update(options)
        if accelerator.scaler is not None and saved["scaler"] is not None:
            accelerator.scaler.load_state_dict(saved["scaler"])
        position = Position(**{name: saved[name] for name in ("epoch", "updates", "history")})
        position.batch = saved.get("batch", 0)
        of_processes = saved["per_process"]
        if len(of_processes) != accelerator.num_processes:
            return position, None
        own = of_processes[accelerator.process_index]
        check_own(own, num_classes=task.method.num_classes)
        task.method.set_draws(own)
        set_rng_state(own["rng"], accelerator.device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever another structure makes of this
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"the checkpoint is not of this model, method and optimizer: {reason}") from error
    return position, own.get("sums")


def _load_weights(module: nn.Module, state: dict[str, Any]) -> None:
    module.load_state_dict(in_parts(state, module.state_dict()))


def differences(saved: dict[str, Any], now: Recipe) -> dict[str, tuple[Any, Any]]:
    """Keys that decide results and differ between the checkpoint's recipe and this one: (before, now)."""
    # A key that is newer than the checkpoint: the run had what is its default now.
    before = {**recipe_defaults(Recipe()), **saved["recipe"]}
    after = recipe_defaults(now)
    return {
        name: (before[name], value)
        for name, value in after.items()
        if name not in FREE_ON_RESUME and before[name] != value
    }


def refuse_changes(
    saved: dict[str, Any], now: Recipe, *, num_processes: int, path: Path, force: bool
) -> list[str]:
    """Refuse to resume what another recipe, or another number of processes, began; with `force`, tell.

    Raises:
        ValueError: a key differs that decides results (names it and both values), the run is already longer,
            its number of processes was another, or it holds something else than a run.
    """
    try:
        check_saved(saved)
    except ValueError as error:
        raise ValueError(f"{path} is whole, but cannot be gone on from: {error}") from error
    another = bool(saved.get("batch"))
    if saved["epoch"] + another > now.epochs:
        has = f"{saved['epoch']} epochs" + (" and has begun another" if another else "")
        raise ValueError(f"the run in {path.parent} already has {has}; epochs is {now.epochs}")
    notes = []
    for name, (before, value) in differences(saved, now).items():
        if not force:
            raise ValueError(
                f"cannot resume {path} with another recipe: {name} was {shown(before)} and is now {value!r}; set "
                "it back, choose another --out, or go on all the same with --force"
            )
        notes.append(f"{name} was {shown(before)} and is now {value!r}")
    if saved["num_processes"] != num_processes:
        if not force:
            raise ValueError(
                f"cannot resume {path} with {num_processes} processes: it was made with {saved['num_processes']}, "
                "and their number decides the batches; start as many, choose another --out, or go on all the "
                "same with --force"
            )
        notes.append(f"there were {saved['num_processes']} processes and are now {num_processes}")
    return notes
