"""The runs of a comparison: a method, a seed and a folder each, and what they came to."""

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from attnmix.commands.method_specs import MethodSpec
from attnmix.commands.trained import trained_model, what_its_method_learnt
from attnmix.evaluation.label_content import label_content_error
from attnmix.evaluation.pasting import pasting_method, with_what_it_learnt
from attnmix.methods import create_method
from attnmix.task import MixTask
from attnmix.training import Recipe, load_recipe, train
from attnmix.training.checkpoint import has_checkpoint
from attnmix.training.loop import RECIPE
from attnmix.training.resuming import FREE_ON_RESUME
from attnmix.training.setup import create_data, create_model

ENTRY = "run.json"
LOOKED_AT = 512  # images on which labels are judged


@dataclass(frozen=True)
class Entry:
    """What a run came to, as `run.json` holds it.

    Attributes:
        label: of its method in tables.
        method: its name.
        method_options: given to it.
        seed: of everything.
        top1, top5: of the evaluation data, in percent; top-5 is None below six classes.
        train_top1: of the last epoch.
        seconds: of training.
        images_per_second: of training.
        history: an entry per epoch.
        confusion: `[class][predicted]` counts.
        class_names: of the data.
        label_content_error: see `attnmix.evaluation.label_content`; None where nothing is pasted or masked.
        recipe: as JSON has it.
    """

    label: str
    method: str
    method_options: dict[str, Any]
    seed: int
    top1: float
    top5: float | None
    train_top1: float | None
    seconds: float
    images_per_second: float
    history: list[dict[str, float]]
    confusion: list[list[int]]
    class_names: list[str]
    label_content_error: dict[str, float] | None
    recipe: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One training run of a comparison: a method, a seed, a recipe and a folder."""

    spec: MethodSpec
    recipe: Recipe
    folder: Path

    def finished(self) -> dict[str, Any] | None:
        """What the run came to, if it is done and was done by this recipe; a damaged entry is made anew."""
        path = self.folder / ENTRY
        if not path.is_file():
            return None
        try:
            entry = json.loads(path.read_bytes())
            same = _decisive(entry["recipe"]) == _decisive(_plain(self.recipe))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return entry if same and set(entry) >= {key.name for key in fields(Entry)} else None

    def check_unchanged(self) -> None:
        """Raise ValueError if the folder holds a run that another recipe began, one with more epochs say.

        Its schedule, or what it was trained on, would not be that of the methods trained from the start.
        """
        path = self.folder / RECIPE
        if not has_checkpoint(self.folder) or not path.is_file():
            return
        before, now = _decisive(_plain(load_recipe(path))), _decisive(_plain(self.recipe))
        for key, value in now.items():
            if before[key] != value:
                raise ValueError(
                    f"{self.folder} was begun with {key} {before[key]!r}, not {value!r}: "
                    "set it back, or choose another --out"
                )


def load_evaluation(recipe: Recipe) -> Any:
    """The recipe's evaluation data."""
    return create_data(recipe)[1]


def check_methods(specs: Sequence[MethodSpec], recipe: Recipe) -> None:
    """Bind each method to the recipe's model, so that a missing package or an unfit option ends no long series.

    Raises:
        ValueError: what the method finds wrong, with its name in front.
    """
    classes = load_evaluation(recipe).num_classes
    model = create_model(recipe, num_classes=classes)
    for spec in specs:
        try:
            MixTask(model, create_method(spec.name, num_classes=classes, **spec.options))
        except ValueError as error:
            raise ValueError(f"{spec.label}: {error}") from error


def first_images(data: Any, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Images `[N, C, H, W]`, labels `[N]` and, where the data set knows them, object masks `[N, H, W]`."""
    if isinstance(data, IterableDataset):
        items = list(itertools.islice(data, count))
        index = torch.arange(len(items))
    else:
        # evenly over the whole set: folders are sorted by class
        index = torch.linspace(0, len(data) - 1, min(count, len(data))).long()
        items = [data[int(i)] for i in index]
    images = torch.stack([image for image, _ in items])
    labels = torch.tensor([label for _, label in items])
    masks = getattr(data, "masks", None)
    if masks is None or masks.shape[-2:] != images.shape[-2:]:
        return images, labels, None
    return images, labels, masks[index]


def do_run(run: Run) -> dict[str, Any]:
    """Train, or go on, judge the labels, and leave the entry beside the run."""
    recipe = run.recipe
    result = train(recipe, run.folder, resume=has_checkpoint(run.folder), progress=False)
    model = trained_model(run.folder)
    entry = asdict(
        Entry(
            label=run.spec.label,
            method=recipe.method,
            method_options=recipe.method_options,
            seed=recipe.seed,
            top1=result.top1,
            top5=result.top5,
            train_top1=result.history[-1].get("train_top1"),
            seconds=result.seconds,
            images_per_second=result.images_per_second,
            history=result.history,
            confusion=result.confusion,
            class_names=result.class_names,
            label_content_error=_label_content(run, model),
            recipe=_plain(recipe),
        )
    )
    path = run.folder / ENTRY
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(entry), encoding="utf-8")
    os.replace(aside, path)
    return entry


def _label_content(run: Run, model: Any) -> dict[str, float] | None:
    # evaluation images have no label maps
    spec = run.spec.taught_by("self")
    method = pasting_method(spec.name, num_classes=model.num_classes, **spec.options)
    data = load_evaluation(run.recipe)
    if method is None or not hasattr(data, "masks"):
        return None
    images, labels, masks = first_images(data, LOOKED_AT)
    if masks is None:
        return None
    method = with_what_it_learnt(method, model, what_its_method_learnt(run.folder, run.recipe))
    return label_content_error(model, method, images, labels, masks).as_dict()


# groups of the recipe's keys, `loader` for one, go as a whole
_FREE = {name.partition(".")[0] for name in FREE_ON_RESUME} - {"epochs", "eval_every"}


def _decisive(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe without what changes no result: where and how fast it ran."""
    return {key: value for key, value in recipe.items() if key not in _FREE}


def _plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON gives it back."""
    return json.loads(json.dumps(asdict(recipe)))
