"""TL-Align (Xiao et al., ICCV 2023): token labels travel through the network with the tokens."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from attnmix.attention.trace import Companion, Journey
from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, Plan
from attnmix.methods.cutmix import CutMix
from attnmix.mixing import MixedBatch, even_cutmix_boxes, mask_to_grid, token_boxes
from attnmix.mixing.draws import check_choice

Result = TypeVar("Result")


class AlignedLabel:
    """TL-Align's label policy: what the classifier reads, traced back to the two images.

    Every token starts with the share of the source in it, class and register tokens with the area weight; at
    each attention layer `label <- (label + headmean(P) label) / 2`; the final label is the class token's, or the
    mean of the image tokens' where the model averages them (section 3.3). A label lies between the two images'
    labels and the rows of P sum to 1, so one number per token, the source's weight, says it all.

    Args:
        residual: average with the token's own label, as the residual connection does; without, a token's label
            is what it attends to alone.
        class_blocks_only: trace through class-attention layers alone (CaiT, XCiT, CA-Swin), taking the image
            tokens for their own places: what is left to do where layers mix channels instead of tokens (XCiT).
    """

    def __init__(self, *, residual: bool = True, class_blocks_only: bool = False) -> None:
        self.residual = residual
        self.class_blocks_only = class_blocks_only

    def bind(self, view: BackboneView) -> None:
        """Needs every token in its place, and layers that mix tokens."""
        view.require_all_tokens()
        view.check_traceable(class_blocks_only=self.class_blocks_only)

    def __call__(
        self,
        view: BackboneView,
        mixed: MixedBatch,
        forward: Callable[[Tensor], Result],
        generator: object,
    ) -> tuple[Result, MixedBatch]:
        """The training forward, labels beside it; blended and unmixed batches keep the weight of their draw."""
        share = mixed.source_map
        if mixed.draw.kind != "paste" or share is None:
            return forward(mixed.images), mixed  # all tokens have one label, which no averaging changes
        size = mixed.images.shape[-2:]
        journey = Journey(
            view.flow(size),
            mask_to_grid(share, view.token_grid_size(size), how="area"),
            mixed.source_weight,
            residual=self.residual,
            class_blocks_only=self.class_blocks_only,
        )
        if view.is_compiled:  # what happens between a compiled model's operations would be compiled too
            with view.open_tap(None) as tap:
                result = forward(mixed.images)
            journey.follow(tap.attend)
        else:
            with Companion(journey):
                result = forward(mixed.images)
        return result, mixed.with_source_weight(view.readout(journey.values))


class TLAlign(CutMix):
    """TL-Align (Xiao et al., ICCV 2023): token-level CutMix, labels aligned with the tokens layer by layer.

    Boxes cover whole patches, so that every token belongs to one image; the label weight is traced through every
    attention layer of the training forward (see `AlignedLabel`), without gradient. In Swin labels travel inside
    the (shifted) windows and are averaged when patches merge, in PVT keys have the mean label of the reduced
    cell. If every token attends to all alike, the label is CutMix's.

    Args:
        num_classes: classes of the labels.
        box: `token`, boxes in whole patches of every size, none empty; `even`, the authors' code, even sides of
            patches only, some empty; `pixel`, CutMix's own boxes, where a token cut by the border starts with
            the covered share.
        residual: average each token's label with what it attends to; without, only the latter.
        class_blocks_only: trace through class-attention layers alone, for XCiT.
        mixup_prob: share of the mixed steps that draw Mixup instead; labels are then by blending weight.
        options: as CutMix's.

    Raises:
        ValueError: a value outside its range; a model whose layers do not mix tokens.
    """

    about = About(
        paper="Xiao et al., ICCV 2023",
        images="a box of whole patches pasted",
        labels="traced with the tokens through every attention layer",
        more="one column of values per layer on a CPU, a product beside it on a GPU",
        needs=("attention between tokens",),
    )

    def __init__(
        self,
        *,
        box: str = "token",
        residual: bool = True,
        class_blocks_only: bool = False,
        mixup_prob: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(mixup_prob=mixup_prob, **options)
        check_choice("box", box, ("token", "even", "pixel"))
        self.box = box
        self.label = AlignedLabel(residual=residual, class_blocks_only=class_blocks_only)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw and paste whole patches, or blend."""
        if self.box == "pixel":
            return super().plan(view, images, labels)
        boxes = token_boxes if self.box == "token" else even_cutmix_boxes
        size = images.shape[-2], images.shape[-1]
        patch = view.token_patch_size
        draw = self.sampler.draw(
            len(images), size, self.generator, kinds=self.kinds, patch_size=patch, boxes=boxes
        )
        return Plan(draw.apply(images))
