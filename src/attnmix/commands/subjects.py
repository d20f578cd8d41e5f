"""A model from where it lies, with its weights, ready to be asked."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.model_config import resolve_input_data_config
from torch import nn

from attnmix.commands.sources import CONFIG, Source
from attnmix.commands.trained import what_its_method_learnt
from attnmix.data import create_evaluation_set, evaluation_settings
from attnmix.data.class_names import model_class_names
from attnmix.evaluation.subject import Subject
from attnmix.training import Recipe
from attnmix.training.checkpoint import load_checkpoint
from attnmix.training.saved_form import check_saved
from attnmix.training.setup import create_model, model_inputs


def open_subject(
    source: Source,
    *,
    device: torch.device,
    pretrained: bool = True,
    model_options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Subject:
    """Build the model and load its weights.

    Args:
        source: from `find_sources`.
        device: where it is to be.
        pretrained: whether a bare timm name gets its published weights, or fresh ones.
        model_options: keywords of timm.create_model for timm's names.
        seed: of fresh weights.

    Raises:
        ValueError: weights that do not fit or cannot be fetched, an option that the model does not take.
    """
    recipe = source.recipe
    if source.checkpoint is not None:
        assert recipe is not None
        model, class_names, make = _from_checkpoint(source.checkpoint, recipe)
    else:
        options = {} if source.name.startswith("local-dir:") else dict(model_options or {})
        make = _maker(source.name, options)
        model = _with_weights(source, options, pretrained=pretrained, seed=seed)
        class_names = model_class_names(model)
    config = resolve_input_data_config(model)
    _check_inputs(config, source)
    resizing = {key: config[key] for key in ("crop_pct", "crop_mode", "interpolation")}
    if source.checkpoint is not None and recipe is not None:
        resizing = evaluation_settings(recipe.data, config["input_size"], dataclasses.asdict(recipe.augment))

    def fresh() -> nn.Module:
        return _seeded(make, seed).to(device).eval()

    return Subject(
        source.label,
        model.to(device),
        class_names,
        tuple(config["input_size"]),
        tuple(config["mean"]),
        tuple(config["std"]),
        fresh,
        fingerprint=_fingerprint(model, config["input_size"], config["mean"], config["std"], resizing),
        method=None if recipe is None else recipe.method,
        method_options={} if recipe is None else recipe.method_options,
        method_learnt=_learnt(source),
        resizing=resizing,
    )


def _learnt(source: Source) -> dict[str, Any]:
    if source.run is None or source.recipe is None:
        return {}
    return what_its_method_learnt(source.run, source.recipe)


def _maker(name: str, options: dict[str, Any], **weights: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        try:
            return timm.create_model(name, **weights, **options)
        except (AssertionError, TypeError) as error:
            raise ValueError(f"model {name!r} cannot be made with model_options {options}: {error}") from error

    return make


def _with_weights(source: Source, options: dict[str, Any], *, pretrained: bool, seed: int) -> nn.Module:
    """The source's model; a failure says what to do about its kind of weights."""
    folder = source.name.removeprefix("local-dir:")
    is_export = folder != source.name
    if source.weights is not None:
        make = _maker(source.name, options, checkpoint_path=str(source.weights))
        trouble = f"{source.weights} does not fit {source.name}"
    elif is_export:
        make = _maker(source.name, options, pretrained=True)
        trouble = f"no model can be made of the {CONFIG} and the weights in {folder}"
    else:
        make = _maker(source.name, options, pretrained=pretrained)
        trouble = (
            f"the published weights of {source.name!r} cannot be had; without network give a file, "
            "TIMM_NAME@FILE, or evaluate fresh weights with --pretrained false"
        )
    try:
        model = _seeded(make, seed)
        model_class_names(model)
        if any(weight.is_meta for weight in model.parameters()):
            raise ValueError("it would have no weights")
        return model
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # timm, safetensors, huggingface_hub and torch have types of their own
        if isinstance(error, ValueError) and not is_export:
            raise
        reason = " ".join(str(error).split())
        raise ValueError(f"{trouble} ({type(error).__name__}: {reason[:300]})") from error


def _check_inputs(config: Mapping[str, Any], source: Source) -> None:
    """Refuse what a configuration may say of its images and no image can be."""
    sides, mean, std, crop = config["input_size"], config["mean"], config["std"], config["crop_pct"]
    right = {
        "input_size": len(sides) == 3 and all(isinstance(side, int) and 1 <= side <= 2**14 for side in sides),
        "mean": all(map(_is_finite, mean)),
        "std": all(_is_finite(value) and value > 0 for value in std),
        "crop_pct": crop is None or (_is_finite(crop) and 0.1 <= crop <= 1),
    }
    for name, is_right in right.items():
        if not is_right:
            raise ValueError(f"{source.label}: its {CONFIG} says {name} {str(config[name])[:80]}, which cannot be")


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _from_checkpoint(path: Path, recipe: Recipe) -> tuple[nn.Module, list[str], Callable[[], nn.Module]]:
    saved = load_checkpoint(path)
    try:
        check_saved(saved)
    except ValueError as error:
        raise ValueError(f"{path} is whole, but holds no run: {error}") from error
    inputs = model_inputs(recipe)
    data, _ = create_evaluation_set(
        recipe.data,
        input_size=inputs["input_size"],
        mean=inputs["mean"],
        std=inputs["std"],
        split=recipe.eval_split,
        data_options=recipe.data_options,
    )
    plain = dataclasses.replace(recipe, init=None, model_options={**recipe.model_options, "pretrained": False})

    def make() -> nn.Module:
        return create_model(plain, num_classes=data.num_classes)

    model = make()
    weights = saved["ema"]
    if weights is None:
        prefix = "model."
        weights = {str(key): value for key, value in saved["trainable"].items()}
        weights = {key.removeprefix(prefix): v for key, v in weights.items() if key.startswith(prefix)}
    try:
        model.load_state_dict(weights)
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} does not fit {recipe.model}: {error}") from error
    return model, [str(name) for name in data.class_names], make


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _fingerprint(model: nn.Module, *settings: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
