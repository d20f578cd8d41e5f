"""Rows of a gallery: the same images, mixed by a method as it was typed."""

from collections.abc import Sequence

from torch import Tensor, nn

from attnmix.commands.method_specs import MethodSpec
from attnmix.evaluation.mixed_pictures import mixed_pictures
from attnmix.evaluation.pasting import pasting_method
from attnmix.methods import create_method
from attnmix.report import GalleryRow


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
    options = {**spec.options, "num_classes": len(class_names), "seed": seed}
    pictures = mixed_pictures(
        model,
        pasting_method(spec.name, **options) or create_method(spec.name, **options),
        images,
        labels,
        name=spec.label,
        classes=[str(class_names[label]) for label in labels.tolist()],
        masks=masks,
        mean=mean,
        std=std,
    )
    return [GalleryRow(**vars(picture)) for picture in pictures]
