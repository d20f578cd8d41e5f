"""The model card beside an exported model: what it is, how good, how to load it, how it was trained.

Names come from folders and files: they stand in code spans or in quoted YAML, and paths by their last name only.
"""

import dataclasses
import json
import shlex
from collections.abc import Sequence

import timm
import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

import attnmix
from attnmix.training.card_text import HUB, as_block, as_code, as_line, hub_data, published, without_path
from attnmix.training.recipe import Recipe

__all__ = ["model_card"]

SHOWN_CLASSES = 20
TASK = "image-classification"


def model_card(
    recipe: Recipe,
    *,
    name: str,
    class_names: Sequence[str],
    top1: float,
    top5: float | None,
    loss: float,
    images: int,
    processes: int = 1,
) -> str:
    """Return the card's text: Markdown under a YAML head that the hub reads.

    Args:
        recipe: of the run.
        name: of the run; its folder's, say.
        class_names: in the order of the logits.
        top1: percent, as top5.
        top5: None with five classes or fewer.
        loss: cross-entropy.
        images: how many images these were measured on.
        processes: that trained it.
    """
    head = _head(recipe, name, top1=top1, top5=top5).to_yaml()
    parts = [
        f"# {_name(recipe.model)}, trained with {_name(recipe.method)}",
        _what_it_is(recipe, class_names),
        _how_good(recipe, top1=top1, top5=top5, loss=loss, images=images),
        _how_to_load(recipe),
        _how_it_was_trained(recipe, name, processes),
    ]
    return str(ModelCard(f"---\n{head}\n---\n\n" + "\n\n".join(parts) + "\n"))


def _head(recipe: Recipe, name: str, *, top1: float, top5: float | None) -> ModelCardData:
    on_hub = hub_data(recipe.data)
    data = as_line(on_hub or without_path(recipe.data).rpartition("/")[2])
    scores = {"Top-1 accuracy": top1} | ({} if top5 is None else {"Top-5 accuracy": top5})
    results = [
        EvalResult(
            task_type=TASK,
            dataset_type=data,
            dataset_name=data,
            dataset_split=as_line(recipe.eval_split),
            metric_type="accuracy",
            metric_name=metric,
            metric_value=round(percent / 100, 4),
        )
        for metric, percent in scores.items()
    ]
    return ModelCardData(
        library_name="timm",
        pipeline_tag=TASK,
        tags=[TASK, "timm", "attnmix", *map(as_line, recipe.method.split("+"))],
        base_model=as_line(recipe.model.partition(":")[2]) if recipe.model.startswith(HUB) else None,
        datasets=None if on_hub is None else [on_hub],
        metrics=["accuracy"],
        model_name=as_line(name) or "model",
        eval_results=results,
    )


# ------------------------------------------------------------------ the sections


def _what_it_is(recipe: Recipe, class_names: Sequence[str]) -> str:
    needs = "timm and attnmix, which adds it to timm" if _is_ours(recipe.model) else "nothing but timm"
    shown = ", ".join(as_code(name) for name in class_names[:SHOWN_CLASSES])
    more = ", ... (all of them in config.json)" if len(class_names) > SHOWN_CLASSES else ""
    lines = [
        f"An image classifier of {len(class_names)} classes, as a plain checkpoint: using it needs {needs}.\n",
        f"- **Model:** {_name(recipe.model)}, from {_origin(recipe)}",
        f"- **Data:** {_name(recipe.data)}, split {_name(recipe.train_split)}",
        *(f"- **Method:** {_method(member)}" for member in recipe.method.split("+")),
        f"- **Classes:** {shown}{more}",
    ]
    return "\n".join(lines)


def _name(text: str) -> str:
    return as_code(without_path(text))


def _origin(recipe: Recipe) -> str:
    if recipe.init is not None:
        return f"the weights in {_name(recipe.init)}"
    pretrained = bool(recipe.model_options.get("pretrained"))
    return "its pretrained weights" if pretrained else f"fresh weights (seed {recipe.seed})"


def _method(name: str) -> str:
    kind = attnmix.METHODS.get(name.replace("_", "-"))
    if kind is None:
        return as_code(name)
    about = kind.about
    paper = "" if about.paper == "-" else f" ({about.paper})"
    return f"{as_code(name)}{paper}; images: {about.images}; labels: {about.labels}"


def _how_good(recipe: Recipe, *, top1: float, top5: float | None, loss: float, images: int) -> str:
    rows = {"top-1 accuracy": f"{top1:.2f} %"}
    if top5 is not None:
        rows["top-5 accuracy"] = f"{top5:.2f} %"
    rows["cross-entropy"] = f"{loss:.4f}"
    which = "the weights" if recipe.ema is None else "the moving average of the weights"
    lines = [
        "## Accuracy\n",
        f"Of {which} after the last of {recipe.epochs} epochs, on the {images} images of {_name(recipe.data)}, "
        f"split {_name(recipe.eval_split)}:\n",
        "| metric | value |",
        "| --- | ---: |",
        *(f"| {metric} | {value} |" for metric, value in rows.items()),
    ]
    return "\n".join(lines)


def _how_to_load(recipe: Recipe) -> str:
    ours = "import attnmix  # adds this model to timm\n" if _is_ours(recipe.model) else ""
    program = f"""{ours}import timm

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # a folder on disk
model = timm.create_model("hf-hub:USER/NAME", pretrained=True).eval()  # this repository on the hub
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
logits = model(transform(image).unsqueeze(0))  # image: a PIL image, RGB
label = model.pretrained_cfg["label_names"][logits.argmax()]"""
    return f"## How to use it\n\n{as_block(program, 'python')}"


def _how_it_was_trained(recipe: Recipe, name: str, processes: int) -> str:
    values = dataclasses.asdict(recipe)
    text = yaml.safe_dump(published(values), sort_keys=False, allow_unicode=True)
    is_whole = json.dumps(published(values)) == json.dumps(values)  # to which tuples are lists
    hint = "" if is_whole else " (Paths stand in it by their last name: put yours in.)"
    start = "attnmix" if processes == 1 else f"torchrun --nproc-per-node {processes} -m attnmix"
    folder = shlex.quote(f"runs/{as_line(name) or 'model'}")
    parts = [
        f"## How it was trained\n\nBy this recipe, in a file `recipe.yaml`{hint}",
        as_block(text.rstrip("\n"), "yaml"),
        "and this command:",
        as_block(f"{start} train recipe.yaml --out {folder}", "sh"),
        f"Made with {', '.join(f'{kind.__name__} {kind.__version__}' for kind in (attnmix, timm, torch))}.",
    ]
    return "\n\n".join(parts)


def _is_ours(model: str) -> bool:
    name = model.partition(".")[0]
    return timm.is_model(name) and timm.models.model_entrypoint(name).__module__.startswith("attnmix.")
