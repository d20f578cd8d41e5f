"""Pictures of what a method does, as it was typed: rows of a gallery, and the same pairs mixed by every method."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.commands.method_specs import MethodSpec
from attnmix.evaluation.mixed_pictures import mixed_pictures, outlined, pixels_of
from attnmix.evaluation.pasting import pasting_method, with_what_it_learnt
from attnmix.methods import MixMethod, create_method, method_options
from attnmix.report import GalleryRow, MixedPair
from attnmix.task import MixTask

SAME_PAIRS = {"pairing": "roll", "mode": "elem"}


def gallery_rows(
    model: nn.Module,
    spec: MethodSpec,
    images: Tensor,
    labels: Tensor,
    *,
    masks: Tensor | None,
    class_names: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    seed: int = 0,
    learnt: Mapping[str, Any] | None = None,
) -> list[GalleryRow]:
    """One row per image of the batch, as the method mixes it with this model in evaluation mode.

    Args:
        model: a timm model; given back as it was.
        spec: the method. Where it mixes in several ways, it is made to paste.
        images: `[B, C, H, W]`, normalised.
        labels: `[B]`.
        masks: `[B, H, W]` bool, True = object pixel; None where unknown.
        class_names: by label.
        mean: of the normalisation, per channel.
        std: of the normalisation, per channel.
        seed: of the method's draws.
        learnt: parameters that were trained for the method, by the keys of its state.
    """
    pictures = mixed_pictures(
        model,
        _shown_method(spec, spec.options, model, learnt, num_classes=len(class_names), seed=seed),
        images,
        labels,
        name=spec.label,
        classes=[str(class_names[label]) for label in labels.tolist()],
        masks=masks,
        mean=mean,
        std=std,
    )
    return [GalleryRow(**vars(picture)) for picture in pictures]


def pair_sources(count: int) -> list[int]:
    """Each image's source in the pairs that every method gets: the image before it."""
    return torch.arange(count).roll(1).tolist()


def mixed_pairs(
    model: nn.Module,
    spec: MethodSpec,
    images: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    learnt: Mapping[str, Any] | None = None,
) -> list[MixedPair]:
    """The batch, each image with the one before as its source, as one step of the method mixes it.

    Args:
        model: a timm model, in evaluation mode for this step; given back as it was.
        spec: the method, made to pair and to paste like that where it can.
        images: `[B, C, H, W]`, normalised.
        labels: `[B]`.
        num_classes: classes of the model.
        mean: of the normalisation, per channel.
        std: of the normalisation, per channel.
        learnt: parameters that were trained for the method, by the keys of its state.
    """
    known = set().union(*(method_options(member, spec.options) for member in spec.name.split("+")))
    forced = {option: value for option, value in SAME_PAIRS.items() if option in known}
    shown = _shown_method(spec, {**spec.options, **forced}, model, learnt, num_classes=num_classes, seed=0)
    task = MixTask(model, shown)
    with torch.no_grad(), task.view.evaluating():
        mixed = task(images, labels)["mixed"]
    found = []
    for i, (source, wanted) in enumerate(zip(mixed.source_index.tolist(), pair_sources(len(images)), strict=True)):
        found.append(
            MixedPair(
                mixed=pixels_of(mixed.images[i], mean, std),
                source_weight=float(mixed.source_weight[i]),
                pasted=outlined(mixed, i),
                partner=source if source not in (i, wanted) else None,
                inside=mixed.draw.kind == "hidden",
            )
        )
    return found


def _shown_method(
    spec: MethodSpec,
    options: dict[str, Any],
    model: nn.Module,
    learnt: Mapping[str, Any] | None,
    *,
    num_classes: int,
    seed: int,
) -> MixMethod:
    settings = {**options, "num_classes": num_classes, "seed": seed}
    method = pasting_method(spec.name, **settings) or create_method(spec.name, **settings)
    return with_what_it_learnt(method, model, learnt or {})
