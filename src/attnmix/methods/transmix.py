"""TransMix (Chen et al., CVPR 2022): CutMix's images, labels by the class attention on them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.cutmix import CutMix
from attnmix.methods.guide import AttentionGuide
from attnmix.mixing import MixedBatch, grid_share, mask_to_grid
from attnmix.mixing.draws import check_choice

Result = TypeVar("Result")


def attention_weight(
    attention: Tensor,
    source_mask: Tensor,
    area_weight: Tensor,
    *,
    grid: tuple[int, int],
    attention_share: float = 0.5,
    mask_to_grid_by: str = "nearest",
) -> Tensor:
    """Label weight of the source from attention on the mixed image (eq. 7, averaged with the area's).

    Args:
        attention: `[B, N]` on the image tokens, any scale.
        source_mask: `[B, H, W]`, True = source pixel; or float, the source's share of the pixel.
        area_weight: `[B]`, CutMix's weight.
        grid: rows and columns of tokens.
        attention_share: 0.5 is section 4.1's "mean of both", 1 is eq. 7 alone.
        mask_to_grid_by: `nearest` (the paper's arrow) or `area` (exact covered share of each token).

    Returns:
        `[B]` in [0, 1].
    """
    on_source = grid_share(attention, mask_to_grid(source_mask, grid, how=mask_to_grid_by))
    return attention_share * on_source + (1 - attention_share) * area_weight


class AttentionLabel:
    """TransMix's label policy: the source's share of attention, averaged with its share of pixels.

    Arguments as `TransMix`'s; `way_out` is the option that messages name instead of `attention`.

    Blended and unmixed batches keep the weight of their draw.
    """

    def __init__(
        self,
        guide: AttentionGuide,
        *,
        attention_share: float = 0.5,
        mask_to_grid: str = "nearest",
        way_out: str | None = None,
    ) -> None:
        check_choice("mask_to_grid", mask_to_grid, ("nearest", "area"))
        if not 0 <= attention_share <= 1:
            raise ValueError(f"attention_share is {attention_share}, but must be between 0 and 1")
        self.guide = guide
        self.attention_share = attention_share
        self.mask_to_grid = mask_to_grid
        self.way_out = way_out

    def bind(self, view: BackboneView) -> None:
        """Needs every token in its place, and the attention it reads."""
        view.require_all_tokens()
        self.guide.bind(view, reader="TransMix", way_out=self.way_out)

    def __call__(
        self,
        view: BackboneView,
        mixed: MixedBatch,
        forward: Callable[[Tensor], Result],
        generator: torch.Generator,
    ) -> tuple[Result, MixedBatch]:
        """The training forward, whose attention on the mixed image gives each sample its own weight."""
        share = mixed.source_map
        if mixed.draw.kind != "paste" or share is None:
            return forward(mixed.images), mixed
        result, attention = self.guide.during(view, mixed.images, forward, generator)
        weight = attention_weight(
            attention,
            share,
            mixed.source_weight,
            grid=view.grid_size(mixed.images.shape[-2:]),
            attention_share=self.attention_share,
            mask_to_grid_by=self.mask_to_grid,
        )
        return result, mixed.with_source_weight(weight)


class TransMix(CutMix):
    """TransMix (Chen et al., CVPR 2022): CutMix images whose label weight follows the class attention.

    Pixels are exactly CutMix's. The training forward of the mixed image is the only one; its attention, without
    gradient, gives each sample its own weight: the share of attention on the pasted tokens (eq. 7), averaged
    with the area share (section 4.1). Uniform attention and a box aligned to the patches give CutMix's label.

    Args:
        num_classes: classes of the labels.
        block: whose attention, counted over the model's attention layers from 0; -1 is the last.
        attention: `class`, the class token's row or the attention pool's (eq. 3-6); `image`, the mean over the
            image tokens' rows, for models that have neither; `class-rollout` (Table 9), `image-rollout`,
            `random`: see `AttentionGuide`.
        attention_share: attention's part in the label weight, the rest is area; 1 is eq. 7 alone.
        mask_to_grid: `nearest` (paper) or `area`, how the pixel mask becomes a token mask.
        provider: a frozen model whose attention is read instead (Table 6), at the price of its forward.
        provider_options: of `timm.create_model`, for that model.
        mixup_prob: share of the mixed steps that draw Mixup instead; labels are then by blending weight.
        options: as CutMix's.

    Raises:
        ValueError: a value outside its range; `attention="class"` on a model with no class row.
    """

    about = About(
        paper="Chen et al., CVPR 2022",
        images="as CutMix",
        labels="by class attention and area, each sample its own",
        needs=("class attention, or `attention=image`",),
    )

    def __init__(
        self,
        *,
        block: int = -1,
        attention: str = "class",
        attention_share: float = 0.5,
        mask_to_grid: str = "nearest",
        provider: str | nn.Module | None = None,
        provider_options: Mapping[str, Any] | None = None,
        mixup_prob: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(mixup_prob=mixup_prob, **options)
        guide = AttentionGuide(attention, block, provider, provider_options)
        self.label = AttentionLabel(guide, attention_share=attention_share, mask_to_grid=mask_to_grid)
