"""What a checkpoint has to hold before a run goes on from it: a file may be whole and still be none of ours."""

import math
import re
from typing import Any

import torch

from attnmix.training.plain_yaml import check_plain, shown

__all__ = ["check_optimizer", "check_own", "check_saved"]

MOST = 2**40  # epochs, batches, updates, images

# what an optimizer keeps of every weight; factored moments (row, col) have shapes of their own
_LIKE_THE_WEIGHT = re.compile(r"(?!.*(row|col|_r|_c)$)(exp_avg|max_exp_avg|momentum|grad_avg|square_avg)\w*")


def check_saved(saved: dict[str, Any]) -> None:
    """Check everything that says how far a run is, and by which recipe.

    Raises:
        ValueError: something is missing, or is what `save_run` does not write.
    """
    for name in ("epoch", "updates", "num_processes"):
        _require(_is_count(saved.get(name)), name, saved.get(name))
    _require(_is_count(saved.get("batch", 0)), "batch", saved.get("batch"))
    history, processes = saved.get("history"), saved.get("per_process")
    right = isinstance(history, list) and len(history) == saved["epoch"] and all(map(_is_entry, history))
    _require(right, "history", history)
    right = isinstance(processes, list) and all(isinstance(own, dict) for own in processes)
    _require(right, "per_process", type(processes))
    _require(isinstance(saved.get("recipe"), dict), "recipe", type(saved.get("recipe")))
    check_plain(saved["recipe"])
    for name in ("trainable", "optimizer"):
        _require(isinstance(saved.get(name), dict), name, type(saved.get(name)))
    for name in ("ema", "scaler"):
        right = name in saved and isinstance(saved[name], (dict, type(None)))
        _require(right, name, type(saved.get(name)))


def check_own(own: dict[str, Any], *, num_classes: int) -> None:
    """Check one process's part: where NumPy's generator stands, which NumPy does not look at, and its sums.

    Raises:
        ValueError: they cannot be.
    """
    keys, position, has_gauss, gauss = own["rng"]["numpy"]
    right = keys.shape == (624,) and isinstance(position, int) and 0 <= position <= 624
    _require(right and has_gauss in (0, 1) and _is_number(gauss), "rng", position)
    sums = own.get("sums")
    if sums is None:
        return
    _require(isinstance(sums, dict), "sums", type(sums))
    values = sums["sums"]
    right = all(value.ndim == 0 for value in values.values()) and (not values or "train_loss" in values)
    _require(right, "sums", "tensors")
    right = all(value.shape in ((), (1,), (num_classes,)) for value in sums["accuracy"].values())
    _require(right, "accuracy", "of other classes")
    _require(_is_count(sums["images"]) and _is_count(sums["skipped"]), "images", sums["images"])
    _require(_is_number(sums["lr"]) and _is_number(sums["seconds"]), "seconds", sums["seconds"])


def check_optimizer(saved: dict[str, Any], optimizer: Any) -> None:
    """Check what torch takes as it comes: the options of each group, and the shape of what is kept of a weight.

    Raises:
        ValueError: another optimizer's, or none's.
    """
    groups, ours = saved["param_groups"], optimizer.state_dict()["param_groups"]
    for theirs, group in zip(groups, ours, strict=True):
        for name, value in group.items():
            right = name in theirs and (name == "params" or _alike(theirs[name], value))
            _require(right, f"optimizer's {name}", theirs.get(name))
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    for number, weight in zip(numbers, weights, strict=True):
        for name, value in saved["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor) and _LIKE_THE_WEIGHT.fullmatch(str(name)):
                _require(value.numel() == 1 or value.shape == weight.shape, f"optimizer's {name}", value.shape)


def _alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return type(one) is type(other) or (_is_number(one) and _is_number(other))


def _is_entry(entry: Any) -> bool:
    """Whether this is an epoch's, as in metrics.jsonl."""
    if not isinstance(entry, dict) or not {"epoch", "seconds", "images_per_second"} <= set(entry):
        return False
    return all(isinstance(name, str) and _is_number(value) for name, value in entry.items())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 2**64 and math.isfinite(value)


def _require(right: bool, name: str, found: Any) -> None:
    if not right:
        raise ValueError(f"its {name} cannot be {shown(found)}")
