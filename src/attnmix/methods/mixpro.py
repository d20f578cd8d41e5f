"""MixPro (Zhao et al., ICLR 2023): images mixed in the cells of a grid, labels that trust attention by degrees."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, Plan, Run
from attnmix.methods.guide import AttentionGuide
from attnmix.methods.label_names import LABELS
from attnmix.methods.labels import LabelPolicy
from attnmix.methods.pasting import Pasting
from attnmix.methods.transmix import AttentionLabel
from attnmix.mixing import MixedBatch, PasteMask, grid_share, mask_to_grid, mix_targets
from attnmix.mixing.draws import check_choice
from attnmix.mixing.grid_masks import chosen_cells
from attnmix.mixing.patch_masks import cell_counts, cells_to_pixels, whole_cells

Result = TypeVar("Result")
OWN_LABELS = ("progressive", "attention")


def progressive_factor(logits: Tensor, targets: Tensor) -> Tensor:
    """How far attention is to be trusted: the prediction's cosine with the label by area (eq. 8).

    Args:
        logits: `[B, C]` of the mixed images.
        targets: `[B, C]` their labels, mixed by area.

    Returns:
        `[B]` float32 in [0, 1], without gradient.
    """
    predicted = logits.detach().float().softmax(dim=1)
    return F.cosine_similarity(predicted, targets.float(), dim=1).clamp(0, 1)


def progressive_weight(attention_weight: Tensor, area_weight: Tensor, factor: Tensor) -> Tensor:
    """The label weight, between the area's and the attention's (eq. 9): three times `[B]` -> `[B]`."""
    return torch.lerp(area_weight.float(), attention_weight.float(), factor)


@dataclass(frozen=True)
class ProgressiveLabel:
    """MixPro's label policy, Progressive Attention Labeling: the surer the model, the more its attention counts.

    Blended and unmixed batches keep the weight of their draw.

    Attributes:
        guide: whose attention, and which.
        targets: `[B, C]` of the unmixed images, which a step has to give: `dataclasses.replace`.
    """

    guide: AttentionGuide
    targets: Tensor | None = None

    def bind(self, view: BackboneView) -> None:
        """Needs every token in its place, and the attention it reads."""
        view.require_all_tokens()
        self.guide.bind(view, reader="MixPro")

    def __call__(
        self,
        view: BackboneView,
        mixed: MixedBatch,
        forward: Callable[[Tensor], Result],
        generator: torch.Generator,
    ) -> tuple[Result, MixedBatch]:
        """The training forward; its attention and its prediction give each sample its own weight."""
        share = mixed.source_map
        if mixed.draw.kind != "paste" or share is None:
            return forward(mixed.images), mixed
        if self.targets is None:
            raise ValueError("progressive labels compare the prediction with the labels: give targets")
        result, attention = self.guide.during(view, mixed.images, forward, generator)
        logits = result[0] if isinstance(result, tuple) else result
        assert isinstance(logits, Tensor)
        # exact: a final token of a pyramid may hold several cells
        on_grid = mask_to_grid(share, view.grid_size(mixed.images.shape[-2:]), how="area")
        by_area = mix_targets(self.targets, mixed.source_index, mixed.source_weight)
        weight = progressive_weight(
            grid_share(attention, on_grid), mixed.source_weight, progressive_factor(logits, by_area)
        )
        return result, mixed.with_source_weight(weight)


class MixPro(Pasting):
    """MixPro (Zhao et al., ICLR 2023): MaskMix's images, labels by Progressive Attention Labeling (PAL).

    The image is divided into square cells of whole image patches, so that every token belongs to one image. As
    many cells as the drawn share allows, at places drawn for each image, are the source's. The label
    weight lies between the area and the share of attention on the source's tokens; how far towards the latter is
    the cosine of the model's prediction with the label by area (eq. 8, 9), so that attention counts for little
    early in training. All is read from the one training forward, without gradient. Uniform attention gives the
    label by area.

    Args:
        mask_patch: side of a cell in pixels, a multiple of the model's image patch; None: a quarter of the
            image's longer side, rounded up to whole patches, as the authors train DeiT-T, DeiT-S, Swin-T and
            Swin-S (DeiT-B: a half, Swin-B: an eighth).
        label: `progressive`; `attention`, the share of attention alone (TransMix's eq. 7); `area` (MaskMix
            alone); or as `Pasting`'s.
        attention: read by the first two: `class`, the class token's row or the attention pool's; `image`, for
            models that have neither, and the others of `AttentionGuide`.
        block: whose attention, counted over the model's attention layers from 0; -1 is the last.
        provider: a frozen model whose attention is read instead, at the price of its forward.
        provider_options: of `timm.create_model`, for that model.
        mixup_prob: share of the mixed steps that draw Mixup instead.
        options: as `Pasting`'s; `mode` says how many shares are drawn.

    Raises:
        ValueError: a value outside its range; `mask_patch` that cuts through tokens, or covers the whole image;
            attention that the model does not have.
    """

    about = About(
        paper="Zhao et al., ICLR 2023",
        images="random cells of a grid pasted",
        labels="between area and class attention, as the prediction is right",
        needs=("class attention, or `attention=image`",),
    )

    def __init__(
        self,
        *,
        mask_patch: int | None = None,
        label: str = "progressive",
        attention: str = "class",
        block: int = -1,
        provider: str | nn.Module | None = None,
        provider_options: Mapping[str, Any] | None = None,
        mixup_prob: float = 0.5,
        **options: Any,
    ) -> None:
        check_choice("label", label, (*OWN_LABELS, *LABELS))
        super().__init__(mixup_prob=mixup_prob, label="area" if label in OWN_LABELS else label, **options)
        if mask_patch is not None and (not isinstance(mask_patch, int) or mask_patch < 1):
            raise ValueError(f"mask_patch is {mask_patch!r}, but must be a whole number of pixels, at least 1")
        if provider is not None and label not in OWN_LABELS:
            raise ValueError(f'label="{label}" asks no provider: leave it out, or use label="progressive"')
        self.mask_patch = mask_patch
        if label in OWN_LABELS:
            self.label = _own_label(label, AttentionGuide(attention, block, provider, provider_options))

    def bind(self, view: BackboneView) -> None:
        """Needs cells of whole patches, and the attention it reads."""
        super().bind(view)
        side = self.mask_patch
        patch = view.token_patch_size
        if side is not None and (side % patch[0] or side % patch[1]):
            raise ValueError(
                f"mask_patch is {side}, but must be a multiple of {view.name}'s patches of {patch[0]} x "
                f"{patch[1]} pixels, so that every token belongs to one image"
            )

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw and paste, or blend; keeps the labels where the label policy compares with them."""
        plan = super().plan(view, images, labels)
        if plan.mixed.draw.kind != "paste" or not isinstance(self.label, ProgressiveLabel):
            return plan
        return replace(plan, guide=self.targets(labels))

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> PasteMask:
        """The source's cells: MaskMix."""
        size = images.shape[-2], images.shape[-1]
        cell = self._cell(size, view.token_patch_size)
        grid = cell_counts(size, cell)
        if grid == (1, 1):
            raise ValueError(
                f"a mask patch of {cell[0]} x {cell[1]} pixels covers images of {size[0]} x {size[1]}: nothing "
                "would be mixed; give a smaller mask_patch"
            )
        share = whole_cells(self.pasted_shares(images), grid[0] * grid[1])
        cells = chosen_cells(share, self.uniform(len(images), *grid)).to(images.device, non_blocking=True)
        return PasteMask(self.partners(images), cells_to_pixels(cells, cell, size))

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """The training forward, under the label policy, which is told the labels."""
        if plan.guide is None:
            return super().run(view, plan)
        assert isinstance(self.label, ProgressiveLabel)
        label = replace(self.label, targets=plan.guide)
        output, mixed = label(view, plan.mixed, view, self.generator)
        return Run(output, mixed)

    def _cell(self, image_size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
        """Height and width of a cell in pixels."""
        if self.mask_patch is not None:
            return self.mask_patch, self.mask_patch
        quarter = max(image_size) / 4
        return ceil(quarter / patch[0]) * patch[0], ceil(quarter / patch[1]) * patch[1]


def _own_label(name: str, guide: AttentionGuide) -> LabelPolicy:
    if name == "progressive":
        return ProgressiveLabel(guide)
    return AttentionLabel(guide, attention_share=1.0, mask_to_grid="area")
