"""TokenMix (Liu et al., ECCV 2022): many blocks of tokens pasted, labels by a teacher's activation maps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels
from attnmix.methods.label_source import Taught
from attnmix.mixing import Draw, PasteMask, boxes_to_mask, class_labels, soft_targets, token_boxes
from attnmix.mixing.draws import check_choice
from attnmix.mixing.label_maps import class_activation
from attnmix.mixing.patch_masks import cells_to_pixels
from attnmix.mixing.token_blocks import block_mask, scattered_mask


def activation_weight(activation: Tensor, source_index: Tensor, source_mask: Tensor) -> Tensor:
    """The source's share of the activation that can still be seen (the content-based target).

    Each label counts by the sum of its image's normalised map over the tokens that are left of it. The two sums
    are divided by their total: the paper's do not add up to 1.

    Args:
        activation: `[B, gh, gw]` of the unmixed images, sum 1 each.
        source_index: `[B]` int64.
        source_mask: `[B, gh, gw]` bool, True = source token.

    Returns:
        `[B]` in [0, 1]; the mask's mean where nothing of either can be seen.
    """
    inside = source_mask.to(activation.dtype)
    of_source = (activation[source_index] * inside).sum(dim=(1, 2))
    of_target = (activation * (1 - inside)).sum(dim=(1, 2))
    seen = of_source + of_target
    return torch.where(seen > 0, of_source / seen, inside.mean(dim=(1, 2))).clamp(0, 1)


class TokenMix(Taught):
    """TokenMix (Liu et al., ECCV 2022): several blocks of tokens pasted, labels by content.

    Masks are blocks of whole tokens of the model's final grid, drawn as BEiT draws its masks. A label's weight is
    how much of its class activation, on a teacher's map of its unmixed image, is left to be seen. If activation
    is the same everywhere, the label is CutMix's. The authors' code: `share=0.571` (half of 14x14 tokens, and 14
    more) and `min_block=1/196` (one of these tokens).

    Args:
        teacher: a frozen model asked once for every pasted batch, without gradient: timm's name for it, the
            folder of an exported run, a module, or `self`, the model under training as it stands. Without one
            labels have to come with label maps.
        teacher_options: of `timm.create_model`, for a teacher given by name; `pretrained` is on by default.
        target: `activation`, or `area`, the mask's share: then nobody is asked, a teacher that is given neither.
        mask: `block`, many blocks; `random`, single tokens; `region`, one box as CutMix's (Table 8).
        share: the source's share of the tokens, always the same; None draws it from Beta(cutmix_alpha,
            cutmix_alpha).
        min_block: with `block`, area of the smallest block as a share of the image, 14 of 196 tokens.
        min_aspect: with `block`, least height over width, and width over height.
        mixup_prob: share of the mixed steps that draw Mixup instead.
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range; neither teacher nor label maps.
    """

    about = About(
        paper="Liu et al., ECCV 2022",
        images="many blocks of tokens pasted",
        labels="by a teacher's class activation on the visible tokens",
        teacher_forwards=1,
        needs=("a teacher or label maps",),
    )
    own_weight = True

    def __init__(
        self,
        *,
        teacher: str | nn.Module | None = None,
        teacher_options: Mapping[str, Any] | None = None,
        target: str = "activation",
        mask: str = "block",
        share: float | None = None,
        min_block: float = 14 / 196,
        min_aspect: float = 0.3,
        mixup_prob: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(teacher=teacher, teacher_options=teacher_options, mixup_prob=mixup_prob, **options)
        check_choice("target", target, ("activation", "area"))
        check_choice("mask", mask, ("block", "random", "region"))
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"share is {share}, but must be above 0 and at most 1, or None to draw it")
        if not 0 <= min_block <= 1:
            raise ValueError(f"min_block is {min_block}, but a share of the image lies between 0 and 1")
        if not 0 < min_aspect <= 1:
            raise ValueError(f"min_aspect is {min_aspect}, but must be above 0 and at most 1")
        self.target = target
        self.mask = mask
        self.share = share
        self.min_block = min_block
        self.min_aspect = min_aspect

    @property
    def asks(self) -> bool:
        """Whether score maps are looked at."""
        return self.target == "activation"

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """Blocks of tokens, and the label weight that follows from what they hide."""
        grid = view.grid_size(images.shape[-2:])
        mask = self._masks(len(images), grid).to(images.device, non_blocking=True)
        partners = self.partners(images)
        weight = None
        if self.asks:
            own = soft_targets(class_labels(labels), num_classes=self.num_classes)
            activation = class_activation(self.scores(view, images, labels), own, grid)
            weight = activation_weight(activation, partners, mask)
        size = images.shape[-2], images.shape[-1]
        return PasteMask(partners, cells_to_pixels(mask, view.patch_size, size), weight)

    def _masks(self, batch: int, grid: tuple[int, int]) -> Tensor:
        """One mask of tokens for each image, `[B, gh, gw]` bool, True = source."""
        shares = self.sampler.pasted_share(batch, self.generator)
        if self.share is not None:
            shares = torch.full_like(shares, self.share)
        if self.mask == "region":
            masks = boxes_to_mask(token_boxes(shares, self.uniform(len(shares), 2), image_size=grid), grid)
        else:
            masks = torch.stack([self._mask(share, grid) for share in shares.tolist()])
        return self.sampler.spread(masks, batch)

    def _mask(self, share: float, grid: tuple[int, int]) -> Tensor:
        if self.mask == "random":
            return scattered_mask(share, grid=grid, generator=self.generator)
        return block_mask(
            share,
            grid=grid,
            min_block=self.min_block,
            min_aspect=self.min_aspect,
            generator=self.generator,
        )
