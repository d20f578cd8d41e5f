"""Mixed evaluation images: the same for every model with the same input and patches."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.evaluation.exam import Exam
from attnmix.mixing import MixSampler, mask_to_grid, token_boxes

COUNT = 256  # all of them lie in memory at once, since each is pasted onto the next
MIXING = (
    "mixed images: in an order drawn once, each image with a box of the one before it in its place, of whole "
    "patches, its area uniform in 0 to 1 before it is cut at the border; never more than {count} images"
)


@dataclass(frozen=True)
class MixedImages:
    """A batch of mixed images. Source = the image pasted in, target = the image pasted onto.

    Attributes:
        images: `[B, C, H, W]`, normalised.
        source_mask: `[B, H, W]` bool, True = source pixel.
        source_weight: `[B]` float32, the source's share of pixels and of tokens.
        is_source: `[B, N]` bool on the final grid, True = source token; none is cut by a box's border.
    """

    images: Tensor
    source_mask: Tensor
    source_weight: Tensor
    is_source: Tensor


def mixed_batches(exam: Exam, view: BackboneView, *, count: int = COUNT) -> Iterator[MixedImages]:
    """Images of `exam.data`, taken evenly, pasted onto each other; the exam's seed and the patches decide how.

    Boxes are in whole final patches, so that on every grid of the model each token is of one image.

    Args:
        exam: gives images, batch size and seed.
        view: gives the patches.
        count: at most so many images, also where the exam's limit is larger.

    Raises:
        ValueError: fewer than two images.
    """
    images = exam.first_images(count).images
    total, size = len(images), (images.shape[-2], images.shape[-1])
    if total < 2:
        raise ValueError("there is only one image, and it takes two to mix")
    generator = torch.Generator().manual_seed(exam.seed)
    # folders are sorted by class: without this nearly all partners would be of one class
    images = images[torch.randperm(total, generator=generator).to(images.device)]
    draw = MixSampler(mode="elem", pairing="roll").paste(
        total, size, generator, patch_size=view.patch_size, boxes=token_boxes
    )
    mixed = draw.apply(images)
    assert mixed.source_mask is not None
    grid = view.grid_size(size)
    exam.progress.begin(total, "mixed images")
    for rows in torch.arange(total).split(exam.batch_size):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        mask = mixed.source_mask[part]
        is_source = mask_to_grid(mask, grid) > 0.5
        yield MixedImages(mixed.images[part], mask, mixed.source_weight[part], is_source)
        exam.progress.advance(len(rows), len(rows))
