"""Pictures of what methods do: the same images, mixed by each, with attention and label weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnmix.attention import AttentionTap
from attnmix.evaluation.label_content import pasting_method, visible_share
from attnmix.methods import create_method
from attnmix.mixing import Paste, fold_tokens, grid_share, mask_to_grid
from attnmix.report import GalleryRow
from attnmix.task import MixTask

from attnmix.commands.method_specs import MethodSpec


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
    method = pasting_method(spec.name, num_classes=num_classes, seed=seed, **spec.options)
    if method is None:
        method = create_method(spec.name, num_classes=num_classes, **{**spec.options, "seed": seed})
    task = MixTask(model, method)
    grid = task.view.grid_size(images.shape[-2:])
    with torch.no_grad(), task.view.evaluating():
        mixed = task(images, labels)["mixed"]
        with AttentionTap(model) as tap:
            model(mixed.images)
    attention = tap.class_attention() if task.view.has_class_row else tap.image_attention()

    count = len(images)
    area: Tensor | None = None
    on_source: Tensor | None = None
    visible: Tensor | None = None
    if isinstance(mixed.draw, Paste) and mixed.source_mask is not None:
        area = mixed.source_mask.float().mean(dim=(1, 2))
        on_source = grid_share(attention, mask_to_grid(mixed.source_mask, grid, how="area"))
        visible = None if masks is None else visible_share(mixed, masks)

    def shown(batch: Tensor) -> Tensor:
        scale, shift = (torch.tensor(values)[:, None, None] for values in (std, mean))
        return (batch * scale + shift).clamp(0, 1).permute(0, 2, 3, 1)

    sources, targets, results = shown(images[mixed.source_index]), shown(images), shown(mixed.images)
    maps = fold_tokens(attention, grid)
    rows = []
    for i in range(count):
        weights = {"label": mixed.source_weight, "area": area, "attention": on_source, "visible": visible}
        rows.append(
            GalleryRow(
                method=spec.label,
                source=sources[i].numpy(),
                target=targets[i].numpy(),
                mixed=results[i].numpy(),
                attention=maps[i].numpy(),
                source_label=str(class_names[int(labels[mixed.source_index[i]])]),
                target_label=str(class_names[int(labels[i])]),
                weights={name: None if w is None else float(w[i]) for name, w in weights.items()},
                window=_window(mixed.draw, i) if isinstance(mixed.draw, Paste) else None,
            )
        )
    return rows


def _window(draw: Paste, i: int) -> tuple[int, int, int, int]:
    top, left, height, width = draw.box[i].tolist()
    return top, left, height, width
