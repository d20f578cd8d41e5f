"""Training: a typed recipe, the loop that follows it, checkpoints and the exported model.

The loop is imported when it is first asked for: reading a recipe or printing help needs no torch.
"""

from typing import TYPE_CHECKING, Any

from attnmix.training.reading import known_overlays, known_recipes, load_recipe, save_recipe
from attnmix.training.recipe import Recipe

if TYPE_CHECKING:
    from attnmix.training.loop import TrainingResult, train

__all__ = [
    "Recipe",
    "TrainingResult",
    "known_overlays",
    "known_recipes",
    "load_recipe",
    "save_recipe",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in ("train", "TrainingResult"):
        from attnmix.training import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
