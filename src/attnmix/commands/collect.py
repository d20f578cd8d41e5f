"""From finished runs to plain results: summary, step costs, controls, pictures."""

import itertools
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import torch

from attnmix.benchmark.device import pinned_threads
from attnmix.benchmark.kinds import StepKind, step_kinds
from attnmix.benchmark.step_time import StepCost, TrainingStep, step_cost, time_steps, weigh
from attnmix.commands.looking import gallery_rows, mixed_pairs, pair_sources
from attnmix.commands.runs import LOOKED_AT, Run, first_images
from attnmix.commands.trained import trained_model, what_its_method_learnt
from attnmix.evaluation.label_content import label_content_controls
from attnmix.evaluation.mixed_pictures import pixels_of
from attnmix.methods import create_method
from attnmix.report import GalleryRow, ImagePairs
from attnmix.task import MixTask
from attnmix.training.setup import create_model, model_inputs

STEP_ROUNDS = 40
PICTURES = 3  # per method
FEWER_PAST = 8  # methods: then one picture each, beside the pairs
PAIRS = 8
NOTE = (
    f"Label-content error: {LOOKED_AT} evaluation images mixed by each method under its own trained model, Mixup "
    "left out. SMMix pastes regions of its own choice, TL-Align boxes of whole patches, the others CutMix's: "
    "compare a label with the controls on its own boxes. TokenMixup's is its base's label, since tokens are mixed "
    "in training alone."
)


def collect_results(runs: Sequence[Run], entries: Sequence[dict[str, Any]], data: Any) -> dict[str, Any]:
    """Everything results.json holds but title and command: plain numbers, lists and names.

    Args:
        runs: all of one recipe but for method and seed.
        entries: what each came to.
        data: the evaluation set.
    """
    labels = list(dict.fromkeys(run.spec.label for run in runs))
    costs = _step_costs(runs, data)
    settings = asdict(runs[0].recipe)
    for key in ("method", "method_options", "seed"):
        settings.pop(key)
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "recipe": settings,
        "versions": {name: version(name) for name in ("attnmix", "timm", "torch", "torchvision", "accelerate")},
        "machine": _machine(runs[0].recipe.threads),
        "class_names": entries[0]["class_names"],
        "methods": labels,
        "runs": [{key: value for key, value in entry.items() if key != "recipe"} for entry in entries],
        "summary": [
            _summary(label, [entry for entry in entries if entry["label"] == label], costs[label])
            for label in labels
        ],
        "controls": _controls(runs[0], data),
        "notes": [NOTE] if any(entry["label_content_error"] for entry in entries) else [],
    }


def pictures(runs: Sequence[Run], data: Any) -> list[GalleryRow]:
    """Gallery rows of each method, mixed under the attention of its own first seed's model."""
    inputs = model_inputs(runs[0].recipe)
    images, labels, masks = first_images(data, PICTURES)
    first = _first_runs(runs)
    rows: list[GalleryRow] = []
    for run in first:
        found = gallery_rows(
            trained_model(run.folder),
            run.spec.taught_by("self"),
            images,
            labels,
            masks=masks,
            class_names=data.class_names,
            mean=inputs["mean"],
            std=inputs["std"],
            learnt=what_its_method_learnt(run.folder, run.recipe),
        )
        rows += found[: PICTURES if len(first) <= FEWER_PAST else 1]
    return rows


def image_pairs(runs: Sequence[Run], data: Any) -> ImagePairs:
    """The same pairs of images mixed by each method, under the attention of its own first seed's model."""
    inputs = model_inputs(runs[0].recipe)
    normalised = {"mean": inputs["mean"], "std": inputs["std"]}
    images, labels, _ = first_images(data, PAIRS)
    classes = len(data.class_names)
    return ImagePairs(
        images=[pixels_of(image, **normalised) for image in images],
        labels=[str(data.class_names[label]) for label in labels.tolist()],
        sources=pair_sources(len(images)),
        mixed={
            run.spec.label: mixed_pairs(
                trained_model(run.folder),
                run.spec.taught_by("self"),
                images,
                labels,
                num_classes=classes,
                learnt=what_its_method_learnt(run.folder, run.recipe),
                **normalised,
            )
            for run in _first_runs(runs)
        },
    )


def _first_runs(runs: Sequence[Run]) -> list[Run]:
    """Each method's run with the first seed."""
    return [run for run in runs if run.recipe.seed == runs[0].recipe.seed]


def _summary(label: str, entries: Sequence[dict[str, Any]], cost: StepCost) -> dict[str, Any]:
    top1 = [entry["top1"] for entry in entries]
    judged = [entry["label_content_error"] for entry in entries if entry["label_content_error"]]
    method = create_method(
        entries[0]["method"], num_classes=len(entries[0]["class_names"]), **entries[0]["method_options"]
    )
    return {
        "label": label,
        "mixup_share": method.shares["blend"],
        "seeds": len(entries),
        "top1_mean": statistics.fmean(top1),
        "top1_std": statistics.stdev(top1) if len(top1) > 1 else None,
        "top1_min": min(top1),
        "top1_max": max(top1),
        "step_ratio": cost.ratio,
        "step_interval": [cost.low, cost.high],
        "label_content_error": statistics.fmean(row["mean"] for row in judged) if judged else None,
        # seeds judge the same images: their errors do not average out
        "label_content_se": statistics.fmean(row["standard_error"] for row in judged) if judged else None,
        "seconds": statistics.fmean(entry["seconds"] for entry in entries),
    }


def _step_costs(runs: Sequence[Run], data: Any) -> dict[str, StepCost]:
    """Cost of the methods' steps beside plain CutMix's: pasting, blending and keeping by their shares.

    Model, batch size, precision and device are the recipe's; one thread on a CPU, whatever the recipe says.
    """
    recipe = runs[0].recipe
    device = torch.device(_device(recipe.device))
    images, labels, _ = first_images(data, recipe.batch_size)
    images, labels = images.to(device), labels.to(device)
    classes = len(data.class_names)
    model = create_model(recipe, num_classes=classes).to(device)
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)

    def step(kind: StepKind) -> TrainingStep:
        method = create_method(kind.method, num_classes=classes, **kind.options)
        return TrainingStep(MixTask(model, method), images, labels, autocast=autocast)

    (plain,) = step_kinds("cutmix", {})
    kinds = {run.spec.label: step_kinds(run.spec.name, run.spec.taught_by("self").options) for run in runs}
    steps = {kind.key: step(kind) for kind in [plain, *itertools.chain(*kinds.values())]}
    with pinned_threads(1):
        seconds = time_steps(steps, rounds=STEP_ROUNDS)
    return {
        label: step_cost(weigh(seconds, {kind.key: kind.share for kind in parts}), seconds[plain.key])
        for label, parts in kinds.items()
    }


def _device(named: str) -> str:
    if named != "auto":
        return named
    return "cuda" if torch.cuda.is_available() else "cpu"


def _controls(run: Run, data: Any) -> list[dict[str, Any]]:
    images, labels, masks = first_images(data, LOOKED_AT)
    if masks is None:
        return []
    classes = len(data.class_names)
    fresh = {**run.recipe.model_options, "pretrained": False}
    untrained = create_model(replace(run.recipe, init=None, model_options=fresh), num_classes=classes)
    controls = label_content_controls(untrained, images, labels, masks, num_classes=classes)
    return [
        {"label": name, "label_content_error": error.mean, "standard_error": error.standard_error}
        for name, error in controls.items()
    ]


def _machine(threads: int | None) -> dict[str, Any]:
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "CPU cores": os.cpu_count(),
        "threads per run": threads or torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["GPU"] = torch.cuda.get_device_name()
    return found
