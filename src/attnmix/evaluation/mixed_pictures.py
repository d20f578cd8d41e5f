"""Pictures of what a method does: source, target and mixed image, attention and label weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from attnmix.evaluation.label_content import visible_share
from attnmix.methods import MixMethod
from attnmix.mixing import MixedBatch, fold_tokens, grid_share, mask_to_grid
from attnmix.task import MixTask


@dataclass(frozen=True)
class MixedPicture:
    """One mixed picture and where it came from.

    Attributes:
        method: the method's name.
        source: `[H, W, 3]` in 0..1, as are `target` and `mixed`.
        target: the image pasted onto.
        mixed: what became of both.
        attention: `[gh, gw]`, of the model on the mixed image.
        source_label: name of its class.
        target_label: name of its class.
        weights: of the source: "label", what the method gives it; where something is pasted also "area", its
            share of the pixels, "attention", its share of the attention on the mixed image, and "visible", its
            share of the object pixels, None where unknown.
        pasted: `[H, W]` bool, True = pixel of the source, or of a soft mask more than half of it; None
            where blended.
        inside: whether it is mixed inside the network: `mixed` is the image as it goes in.
    """

    method: str
    source: np.ndarray
    target: np.ndarray
    mixed: np.ndarray
    attention: np.ndarray
    source_label: str
    target_label: str
    weights: dict[str, float | None]
    pasted: np.ndarray | None = None
    inside: bool = False


def mixed_pictures(
    model: nn.Module,
    method: MixMethod,
    images: Tensor,
    labels: Tensor,
    *,
    name: str,
    classes: Sequence[str],
    masks: Tensor | None,
    mean: Sequence[float],
    std: Sequence[float],
) -> list[MixedPicture]:
    """One picture per image of the batch, as the method mixes it with this model in evaluation mode.

    Args:
        model: a timm model; given back as it was.
        method: a mixing method.
        images: `[B, C, H, W]`, normalised.
        labels: `[B]`, numbers of the model's outputs.
        name: the method's.
        classes: the name of each image's class.
        masks: `[B, H, W]` bool, True = object pixel; None where unknown.
        mean: of the normalisation, per channel.
        std: of the normalisation, per channel.

    Raises:
        ValueError: a model that the method cannot work on.
    """
    task = MixTask(model, method)
    grid = task.view.grid_size(images.shape[-2:])
    found = []
    for i in range(len(images)):
        # a step each: what is drawn once per batch differs from picture to picture
        with torch.no_grad(), task.view.evaluating():
            mixed = task(images, labels)["mixed"]
            with task.view.open_tap() as tap:
                task.view(mixed.images)
        read = task.view.class_attention if task.view.has_class_row else task.view.image_attention
        attention = read(tap, -1, images.shape[-2:])
        weights: dict[str, float | None] = {"label": float(mixed.source_weight[i])}
        source = int(mixed.source_index[i])
        share = mixed.source_map
        if mixed.draw.kind == "paste" and share is not None:
            on_source = grid_share(attention, mask_to_grid(share, grid, how="area"))
            weights["area"] = float(share[i].mean())
            weights["attention"] = float(on_source[i])
            # an image without a single object pixel is one whose object nobody marked
            known = masks is not None and bool(masks[i].any() and masks[source].any())
            weights["visible"] = _or_none(visible_share(mixed, masks)[i]) if masks is not None and known else None
        found.append(
            MixedPicture(
                method=name,
                source=pixels_of(images[source], mean, std),
                target=pixels_of(images[i], mean, std),
                mixed=pixels_of(mixed.images[i], mean, std),
                attention=fold_tokens(attention, grid)[i].cpu().numpy(),
                source_label=classes[source],
                target_label=classes[i],
                weights=weights,
                pasted=outlined(mixed, i),
                inside=mixed.draw.kind == "hidden",
            )
        )
    return found


def outlined(mixed: MixedBatch, number: int) -> np.ndarray | None:
    """Where one image of the batch is its source's, `[H, W]` bool; of a soft mask, where more than half is.

    None where nothing is pasted: blended all alike or inside the network, cut out, left as it is.
    """
    share = mixed.source_map
    if mixed.draw.kind != "paste" or share is None:
        return None
    return (share[number] > 0.5).cpu().numpy()


def _or_none(share: Tensor) -> float | None:
    return float(share) if math.isfinite(share) else None


def pixels_of(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """A normalised image `[C, H, W]` as `[H, W, C]` in 0..1."""
    scale, shift = (image.new_tensor(list(values))[:, None, None] for values in (std, mean))
    return (image * scale + shift).clamp(0, 1).permute(1, 2, 0).cpu().numpy()
