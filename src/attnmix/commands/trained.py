"""What a finished run left behind: its model, and what its method learnt."""

from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from attnmix.methods import METHODS
from attnmix.training import Recipe, load_recipe
from attnmix.training.checkpoint import CHECKPOINT, load_checkpoint
from attnmix.training.loop import RECIPE

EXPORT = "model"  # a run's folder of the exported model
PREFIX = "method."


def trained_model(run: Path) -> nn.Module:
    """The model that a run exported.

    Raises:
        ValueError: the export is damaged.
    """
    folder = run / EXPORT
    try:
        return timm.create_model(f"local-dir:{folder}", pretrained=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # timm, safetensors and torch have types of their own
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"no model can be made of {folder}, as the run left it ({reason}): delete {run}, and train it again"
        ) from error


def what_its_method_learnt(run: Path, recipe: Recipe) -> dict[str, Any]:
    """The parameters that a run trained for its method (AutoMix's Mix Block), by the keys of the method's state.

    Empty where the method has none, or the run's checkpoint is gone.
    """
    learns = any(METHODS[name].about.parameters for name in recipe.method.replace("_", "-").split("+"))
    if not learns or not (run / CHECKPOINT).is_file():
        return {}
    saved = load_checkpoint(run / CHECKPOINT).get("trainable")
    if not isinstance(saved, dict):
        raise ValueError(f"{run / CHECKPOINT} is whole, but holds no weights: it is no run's")
    return {key.removeprefix(PREFIX): value for key, value in saved.items() if key.startswith(PREFIX)}


def learnt_beside(weights: str | None, method: str) -> dict[str, Any]:
    """What a method learnt, where the file of weights is a run's export and that run trained with this method."""
    run = Path(weights or "").parent.parent
    if Path(weights or "").parent.name != EXPORT or not (run / RECIPE).is_file():
        return {}
    recipe = load_recipe(run / RECIPE)
    return what_its_method_learnt(run, recipe) if recipe.method.replace("_", "-") == method else {}
