"""The recipe: everything that decides what a training run does, as one typed dataclass.

A recipe is a YAML file. jsonargparse reads it into `Recipe` and makes the command line from the
same fields, so a key has one name, one type and one help text everywhere.
"""

import dataclasses
import difflib
import math
import os
from argparse import ArgumentError
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import jsonargparse
import yaml

__all__ = [
    "Augment",
    "Loader",
    "Optimizer",
    "Recipe",
    "Schedule",
    "add_recipe_arguments",
    "known_recipes",
    "load_recipe",
    "nearest",
    "recipe_defaults",
    "recipe_from_arguments",
    "recipe_path",
    "save_recipe",
]

RECIPES = Path(__file__).resolve().parent.parent / "recipes"

# Help texts are the strings below each field.
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


# ------------------------------------------------------------------ the fields


@dataclass
class Optimizer:
    """How the weights move."""

    opt: str = "adamw"
    """Optimizer, by timm's name: adamw, sgd, lamb, lion, ... Biases, norms and what the model itself
    names (positions, class token) get no weight decay."""
    weight_decay: float = 0.05
    """Weight decay."""
    momentum: float = 0.9
    """Momentum, for optimizers that have one (sgd, lars, ...); adamw has betas instead."""
    betas: tuple[float, float] | None = None
    """Adam's two decay rates, as [0.9, 0.999]; null leaves the optimizer's own."""
    eps: float | None = None
    """Adam's epsilon; null leaves the optimizer's own."""
    layer_decay: float | None = None
    """Learning rate factor from each layer to the one below, for fine-tuning (0.75); null is off."""

    def __post_init__(self) -> None:
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        _require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "in [0, 1)")
        if self.betas is not None:
            _require(all(0 <= b < 1 for b in self.betas), "optimizer.betas", self.betas, "two in [0, 1)")
        if self.eps is not None:
            _require(self.eps > 0, "optimizer.eps", self.eps, "above 0")
        if self.layer_decay is not None:
            _require(0 < self.layer_decay <= 1, "optimizer.layer_decay", self.layer_decay, "in (0, 1]")


@dataclass
class Schedule:
    """How the learning rate goes, update by update."""

    sched: Literal["cosine", "constant"] = "cosine"
    """After warm-up: cosine down to min_lr at the last epoch, or constant."""
    warmup_epochs: int = 5
    """Epochs in which the learning rate climbs in a straight line from warmup_lr towards lr. As in timm
    the cosine runs over all epochs from the first, and the warm-up covers its beginning: it ends on a
    rate a little below lr."""
    warmup_lr: float = 1e-6
    """Learning rate of the very first update."""
    min_lr: float = 1e-5
    """Learning rate at the end of the cosine."""

    def __post_init__(self) -> None:
        _require(self.warmup_epochs >= 0, "schedule.warmup_epochs", self.warmup_epochs, "0 or more")
        _require(self.warmup_lr >= 0, "schedule.warmup_lr", self.warmup_lr, "0 or more")
        _require(self.min_lr >= 0, "schedule.min_lr", self.min_lr, "0 or more")


@dataclass
class Augment:
    """What is done to each training image before it is mixed: timm's transforms, by timm's names."""

    no_aug: bool = False
    """Resize only: the keys below but interpolation and crop_pct are then without effect."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Random crop: smallest and largest share of the image's area."""
    ratio: tuple[float, float] = (0.75, 1.3333333)
    """Random crop: narrowest and widest side ratio."""
    hflip: float | None = None
    """Probability of a left-right flip; null: 0.5, but 0 for embedded data (a mirrored digit is none)."""
    vflip: float = 0.0
    """Probability of an upside-down flip."""
    color_jitter: float = 0.4
    """Strength of random brightness, contrast and saturation; 0 is off. Not used with auto_augment."""
    auto_augment: str | None = None
    """timm's name of a policy: rand-m9-mstd0.5-inc1 (RandAugment), augmix-m3-w3, ...; null is off."""
    re_prob: float = 0.0
    """Probability of random erasing."""
    re_mode: Literal["const", "rand", "pixel"] = "pixel"
    """What erases: black, one random colour, or random pixels."""
    interpolation: Literal["bicubic", "bilinear", "nearest", "random"] = "bicubic"
    """How images are resized, in training and in evaluation (random: bicubic in evaluation)."""
    crop_pct: float | None = None
    """Evaluation: share of the resized image's side that the centre crop keeps; 1.0 is no crop; null:
    0.875, but 1.0 for embedded data and for models with a side below 128 pixels."""

    def __post_init__(self) -> None:
        low, high = self.scale
        _require(0 < low <= high <= 1, "augment.scale", self.scale, "[low, high] with 0 < low <= high <= 1")
        low, high = self.ratio
        _require(0 < low <= high, "augment.ratio", self.ratio, "[low, high] with 0 < low <= high")
        for name in ("hflip", "vflip", "re_prob"):
            value = getattr(self, name)
            _require(value is None or 0 <= value <= 1, f"augment.{name}", value, "a probability in [0, 1]")
        _require(self.color_jitter >= 0, "augment.color_jitter", self.color_jitter, "0 or more")
        right_crop = self.crop_pct is None or 0 < self.crop_pct <= 1
        _require(right_crop, "augment.crop_pct", self.crop_pct, "in (0, 1], or null")


@dataclass
class Loader:
    """How images reach the model; changes speed, never results."""

    workers: int = 0
    """Processes that read and augment images; 0 does it in the training process (right for digits)."""
    pin: bool = True
    """Page-locked host memory: faster copies to a GPU, no effect without one."""

    def __post_init__(self) -> None:
        _require(self.workers >= 0, "loader.workers", self.workers, "0 or more")


@dataclass
class Recipe:
    """A training run.

    Raises:
        ValueError: if a value is out of range; the message names the key, the value and what is right.
    """

    model: str = "vit_tiny_patch16_224"
    """timm model name; see `attnmix list models`."""
    model_options: dict[str, Any] = field(default_factory=dict)
    """Keywords of timm.create_model: img_size, patch_size, drop_path_rate, pretrained, ..."""
    init: str | None = None
    """Initial weights, a .safetensors file of the whole model (OUT/model/model.safetensors of another
    run, say); null: fresh weights, decided by the seed alone."""
    data: str = "digits-in-scenes"
    """Data set: an embedded one, a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or timm's prefixed
    names (hfds/..., wds/..., torch/...); see `attnmix list data`."""
    data_options: dict[str, Any] = field(default_factory=dict)
    """Options of the data set."""
    train_split: str = "train"
    """Split to train on."""
    eval_split: str = "validation"
    """Split to evaluate on."""
    method: str = "cutmix"
    """Mixing method; see `attnmix list methods`."""
    method_options: dict[str, Any] = field(default_factory=dict)
    """Options of the method: smoothing, mixup_prob, prob, ..."""
    epochs: int = 300
    """Passes over the training images."""
    batch_size: int = 128
    """Images per step and process."""
    lr: float = 5e-4
    """Peak learning rate, as it is: never scaled by batch size or number of processes. After a warm-up the
    cosine has already left it (see schedule.warmup_epochs)."""
    seed: int = 0
    """Decides initial weights, data order, augmentation and the method's draws. The first three do not
    depend on the method."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision: no is float32 throughout; fp16 needs a GPU."""
    compile: bool = False
    """torch.compile the model."""
    accumulation_steps: int = 1
    """Steps whose gradients are averaged into one update."""
    clip_grad: float | None = None
    """Largest gradient norm; null is no clipping."""
    ema: float | None = None
    """Decay of a moving average of the weights (0.9999), which is then evaluated beside the plain
    weights and exported; null is off."""
    threads: int | None = None
    """Torch's CPU threads; null leaves them."""
    eval_every: int = 1
    """Evaluate after every so many epochs, and after the last."""
    checkpoint_every: int = 1
    """Write the checkpoint after every so many epochs, and after the last."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """How the weights move."""
    schedule: Schedule = field(default_factory=Schedule)
    """How the learning rate goes."""
    augment: Augment = field(default_factory=Augment)
    """What is done to each training image before it is mixed."""
    loader: Loader = field(default_factory=Loader)
    """How images reach the model."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulation_steps", "eval_every", "checkpoint_every"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "above 0")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")
        kind, _, index = self.device.partition(":")
        right_device = kind == "cuda" and index.isdecimal() if index else self.device in _DEVICES
        _require(right_device, "device", self.device, "auto, cpu, cuda, cuda:0, cuda:1, ... or mps")
        if self.clip_grad is not None:
            _require(self.clip_grad > 0, "clip_grad", self.clip_grad, "above 0, or null for no clipping")
        if self.ema is not None:
            _require(0 < self.ema < 1, "ema", self.ema, "in (0, 1), or null for none")
        if self.threads is not None:
            _require(self.threads >= 1, "threads", self.threads, "1 or more, or null")


_DEVICES = ("auto", "cpu", "cuda", "mps")


def _require(right: bool, name: str, value: object, what: str) -> None:
    if not right:  # NaN compares false, hence lands here too
        raise ValueError(f"{name} is {value!r}, but must be {what}")


# ------------------------------------------------------------------ reading and writing


def known_recipes() -> dict[str, Path]:
    """Return the packaged recipes: name -> file."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def recipe_path(recipe: str | os.PathLike[str]) -> Path:
    """Return the file of a packaged recipe's name, or of a path.

    Raises:
        ValueError: if it is neither; the message names the nearest recipe.
    """
    known = known_recipes()
    if str(recipe) in known:
        return known[str(recipe)]
    path = Path(recipe)
    if path.is_file():
        return path
    hint = nearest(str(recipe), known)
    raise ValueError(f"unknown recipe {str(recipe)!r}{hint}; known: {', '.join(known)}, or a path to a YAML file")


def load_recipe(recipe: str | os.PathLike[str], **overrides: Any) -> Recipe:
    """Read a recipe: a packaged name or a path, with `overrides` (dictionaries are merged) on top.

    Raises:
        ValueError: for an unknown recipe or key, naming the nearest, and for a wrong type or value.
    """
    path = recipe_path(recipe)
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold keys with values, as 'epochs: 30', not a {type(values).__name__}")
    _check_keys(values, Recipe, where=f" in {path}")
    _check_keys(overrides, Recipe, where="")
    return _recipe(_checked(overrides, text, where=f" in {path}"))


def save_recipe(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write the recipe with every key, as `load_recipe` reads it."""
    values = _plain(dataclasses.asdict(recipe))
    Path(path).write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown name: `; did you mean 'X'?`, or nothing when none is near."""
    names = {k.replace("-", "_"): k for k in known}
    match = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.5)
    return f"; did you mean {names[match[0]]!r}?" if match else ""


def _plain(value: Any) -> Any:
    """Tuples as lists, so that plain YAML holds them."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _groups(kind: type) -> dict[str, type]:
    """Fields of a dataclass that are dataclasses themselves: name -> type."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if dataclasses.is_dataclass(hints[f.name])}


def _check_keys(values: Mapping[Any, Any], kind: type, *, where: str, prefix: str = "") -> None:
    names = [f.name for f in dataclasses.fields(kind)]
    groups = _groups(kind)
    for key, value in values.items():
        if key not in names:
            # Look in all groups too: `weight_decay` at the top is meant as `optimizer.weight_decay`.
            near = [prefix + n for n in names]
            near += [f"{g}.{f.name}" for g, k in groups.items() for f in dataclasses.fields(k)]
            same = [n for n in near if n.rpartition(".")[2] == key]
            hint = f"; did you mean {same[0]!r}?" if same else nearest(f"{prefix}{key}", near)
            raise ValueError(f"unknown recipe key '{prefix}{key}'{where}{hint}")
        if key in groups:
            if not isinstance(value, Mapping):
                raise ValueError(f"'{prefix}{key}'{where} must hold keys with values, not {value!r}")
            _check_keys(value, groups[key], where=where, prefix=f"{prefix}{key}.")


def _checked(overrides: Mapping[str, Any], below: str | Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Check types by jsonargparse; `below` is YAML text or values already checked."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    try:
        # jsonargparse reads the text itself: its YAML takes 2e-3 for a number, PyYAML's does not.
        parsed = parser.parse_string(below) if isinstance(below, str) else parser.parse_object(_plain(below))
        values = _merge(parsed.as_dict(), _plain(overrides))
        return parser.parse_object(_plain(values)).as_dict() if overrides else values
    except (ArgumentError, TypeError) as error:
        raise ValueError(f"{' '.join(str(error).split())}{where}") from error


def _recipe(values: Mapping[str, Any]) -> Recipe:
    kinds = _groups(Recipe)
    return Recipe(**{k: kinds[k](**v) if k in kinds else v for k, v in values.items()})


# ------------------------------------------------------------------ the command line


def add_recipe_arguments(parser: jsonargparse.ArgumentParser, *, skip: Iterable[str] = ()) -> None:
    """Add the argument RECIPE and an option for every key of a recipe but those in `skip`.

    `attnmix.cli` lays the recipe's values under what was typed; `recipe_from_arguments` gives them back.
    """
    parser.add_argument("recipe", help="a recipe's name (`attnmix list recipes`) or a YAML file")
    parser.add_class_arguments(Recipe, skip=set(skip))


def recipe_from_arguments(arguments: jsonargparse.Namespace, **overrides: Any) -> Recipe:
    """Return the recipe that was typed; keys skipped on the command line come from the recipe's file.

    Raises:
        ValueError: for values out of range.
    """
    base = load_recipe(arguments.recipe)
    values = {f.name: getattr(base, f.name) for f in dataclasses.fields(Recipe)}
    values.update({name: arguments[name] for name in values if name in arguments})
    for name in _groups(Recipe):
        values[name] = dict(vars(values[name]))
    return _recipe({**values, **overrides})


def recipe_defaults(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's values under their names on the command line, for `parser.set_defaults`."""
    defaults = _plain(dataclasses.asdict(recipe))
    for group in _groups(Recipe):
        defaults.update({f"{group}.{name}": value for name, value in defaults.pop(group).items()})
    return defaults
