"""TransMix (Chen et al., CVPR 2022): CutMix's images, labels by the class attention on them."""

from typing import Any

from torch import Tensor

from attnmix.attention import AttentionTap
from attnmix.backbone import BackboneView
from attnmix.methods.cutmix import CutMix
from attnmix.mixing import Paste, grid_share, mask_to_grid
from attnmix.mixing.draws import check_choice


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
        source_mask: `[B, H, W]` bool, True = source pixel.
        area_weight: `[B]`, CutMix's weight.
        grid: rows and columns of tokens.
        attention_share: 0.5 is section 4.1's "mean of both", 1 is eq. 7 alone.
        mask_to_grid_by: `nearest` (the paper's arrow) or `area` (exact covered share of each token).

    Returns:
        `[B]` in [0, 1].
    """
    on_source = grid_share(attention, mask_to_grid(source_mask, grid, how=mask_to_grid_by))
    return attention_share * on_source + (1 - attention_share) * area_weight


class TransMix(CutMix):
    """TransMix (Chen et al., CVPR 2022): CutMix images whose label weight follows the class attention.

    Pixels are exactly CutMix's. The training forward of the mixed image is the only one; its attention, without
    gradient, gives each sample its own weight: the share of attention on the pasted tokens (eq. 7), averaged
    with the area share (section 4.1). Uniform attention and a box aligned to the patches give CutMix's label.

    Args:
        num_classes: classes of the labels.
        block: whose attention, counted over the model's attention layers; -1 is the last.
        attention: `class`, the class token's row or the attention pool's (eq. 3-6); `image`, the mean over the
            image tokens' rows, for models that have neither.
        attention_share: attention's part in the label weight, the rest is area; 1 is eq. 7 alone.
        mask_to_grid: `nearest` (paper) or `area`, how the pixel mask becomes a token mask.
        mixup_prob: share of the mixed steps that draw Mixup instead; labels are then by blending weight.
        options: as CutMix's.

    Raises:
        ValueError: a value outside its range; `attention="class"` on a model with no class row.
    """

    def __init__(
        self,
        *,
        block: int = -1,
        attention: str = "class",
        attention_share: float = 0.5,
        mask_to_grid: str = "nearest",
        mixup_prob: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(mixup_prob=mixup_prob, **options)
        check_choice("attention", attention, ("class", "image"))
        check_choice("mask_to_grid", mask_to_grid, ("nearest", "area"))
        if not 0 <= attention_share <= 1:
            raise ValueError(f"attention_share is {attention_share}, but must be between 0 and 1")
        self.block = block
        self.attention = attention
        self.attention_share = attention_share
        self.mask_to_grid = mask_to_grid

    def bind(self, view: BackboneView) -> None:
        """Needs a class row and every token in its place."""
        view.require_all_tokens()
        if self.attention == "class" and not view.has_class_row:
            raise ValueError(
                f"{view.name} classifies by no class token whose attention TransMix could read; "
                'use attention="image", or a model with a class token'
            )

    def forward(self, view: BackboneView, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """CutMix's step, with the label weight taken from the attention of that same forward."""
        targets = self.targets(labels)
        mixed = self.mix(view, images)
        if not isinstance(mixed.draw, Paste) or mixed.source_mask is None:
            return self.outcome(mixed, view(mixed.images), targets)
        grid = view.grid_size(images.shape[-2:])
        with AttentionTap(view.model, blocks=[self.block]) as tap:
            output = view(mixed.images)
        read = tap.class_attention if self.attention == "class" else tap.image_attention
        weight = attention_weight(
            read(self.block),
            mixed.source_mask,
            mixed.source_weight,
            grid=grid,
            attention_share=self.attention_share,
            mask_to_grid_by=self.mask_to_grid,
        )
        return self.outcome(mixed.with_source_weight(weight), output, targets)
