"""Pictures of what methods do: the same images, mixed by each, with attention and label weights."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from attnmix.commands.method_specs import MethodSpec
from attnmix.evaluation.label_content import pasting_method, visible_share
from attnmix.methods import create_method
from attnmix.mixing import Paste, fold_tokens, grid_share, mask_to_grid
from attnmix.report import GalleryRow
from attnmix.task import MixTask


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
    """
    num_classes = len(class_names)
    options = {**spec.options, "num_classes": num_classes, "seed": seed}
    method = pasting_method(spec.name, **options) or create_method(spec.name, **options)
    task = MixTask(model, method)
    rows = []
    for i in range(len(images)):
        # a step each: what is drawn once per batch differs from row to row
        with torch.no_grad(), task.view.evaluating():
            mixed = task(images, labels)["mixed"]
            with task.view.open_tap() as tap:
                task.view(mixed.images)
        size = images.shape[-2:]
        read = task.view.class_attention if task.view.has_class_row else task.view.image_attention
        attention, grid = read(tap, -1, size), task.view.grid_size(size)
        weights: dict[str, float | None] = {"label": float(mixed.source_weight[i])}
        window = None
        if isinstance(mixed.draw, Paste) and mixed.source_mask is not None:
            on_source = grid_share(attention, mask_to_grid(mixed.source_mask, grid, how="area"))
            weights["area"] = float(mixed.source_mask[i].float().mean())
            weights["attention"] = float(on_source[i])
            weights["visible"] = None if masks is None else float(visible_share(mixed, masks)[i])
            top, left, height, width = mixed.draw.box[i].tolist()
            window = (top, left, height, width)
        source = int(mixed.source_index[i])
        rows.append(
            GalleryRow(
                method=spec.label,
                source=_shown(images[source], mean, std),
                target=_shown(images[i], mean, std),
                mixed=_shown(mixed.images[i], mean, std),
                attention=fold_tokens(attention, grid)[i].numpy(),
                source_label=str(class_names[int(labels[source])]),
                target_label=str(class_names[int(labels[i])]),
                weights=weights,
                window=window,
            )
        )
    return rows


def _shown(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """A normalised image `[C, H, W]` as `[H, W, C]` in 0..1."""
    scale, shift = (torch.tensor(values)[:, None, None] for values in (std, mean))
    return (image * scale + shift).clamp(0, 1).permute(1, 2, 0).numpy()
