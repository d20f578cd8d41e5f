"""AutoMix (Liu et al., ECCV 2022): a mask that is learned together with the classifier."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, Plan, Run
from attnmix.methods.blocks import block_number
from attnmix.methods.heads import of_the_same_seed
from attnmix.methods.mix_block import UPSAMPLINGS, MixBlock, area_loss, upsampled_mask
from attnmix.methods.moving_average import MovingAverage
from attnmix.methods.pasting import Pasting
from attnmix.mixing import Draw, Keep, PasteMask, mix_targets
from attnmix.mixing.draws import check_choice
from attnmix.mixing.whole_numbers import is_whole

Features = tuple[Tensor, tuple[int, int]]  # [B, N, D], and their grid


class Guide(NamedTuple):
    """What the Mix Block learns from: a mix of its own, beside that of the images the model is trained on.

    The unmixed batch `[B, C, H, W]`, its features, partners `[B]` int64 and ratios `[B]`.
    """

    images: Tensor
    features: Features
    partners: Tensor
    source_weight: Tensor


class AutoMix(Pasting):
    """AutoMix (Liu et al., ECCV 2022): a Mix Block predicts the mask from both images' features and the ratio.

    Features come from a moving average of the model, frozen and in evaluation mode, which also judges the masks.
    One loss trains two things, with no gradient from one to the other. The model learns from the mixed images
    (`classification`, the mask as a constant) and the unmixed ones (`clean`). The Mix Block learns from a mix of
    its own, with ratio and partners of its own: what it made is to be classified as the mixed label by the moving
    average (`generation`), and the masks' means are to be near their ratios (`area`). The label weight is the
    ratio as drawn. The mask is soft, one value per token of `block`. Ratios close to 0 or 1 train the model on
    plain Mixup instead. An image that is its own partner stays itself.

    The average starts as the model, follows in every training step of this method (drawn with others, in those
    alone), once for each update of the weights however many batches it gathers, is saved and resumed with the
    method's state, and never exported; nor is the Mix Block, so that what is drawn beside training, in an
    evaluation, is an untrained one's. The paper raises the momentum to 1 and lowers the area loss's weight to 0
    during training; here both are constant. The average never runs compiled.

    Args:
        block: whose input tokens are the features, counted from 0; None: the middle one (the authors' for DeiT).
        momentum: of the moving average; 1 is the model as it was at the first step.
        clean_weight: of the cross-entropy on the unmixed images; 0 saves a forward and a backward pass.
        area_weight: of the area loss (the paper's gamma).
        area_margin: how far a mask's mean may be from its ratio at no cost (the paper's epsilon).
        mixup_margin: ratios this close to 0 or 1 are Mixup's; 0.08 is the authors' code, 0: none are.
        upsampling: from tokens to pixels by `nearest` (paper), or `bilinear`.
        cutmix_alpha: the source's ratio is drawn from Beta(alpha, alpha); 2 is the paper's.
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range; a block that the model does not have.
    """

    about = About(
        paper="Liu et al., ECCV 2022",
        images="blended by a learned mask",
        labels="by the ratio as drawn",
        forwards=1,
        backwards=1,
        parameters=True,
        more="1.5 forwards and 1 backward of a moving average",
    )
    own_weight = True

    def __init__(
        self,
        *,
        block: int | None = None,
        momentum: float = 0.999,
        clean_weight: float = 1.0,
        area_weight: float = 0.1,
        area_margin: float = 0.1,
        mixup_margin: float = 0.08,
        upsampling: str = "nearest",
        cutmix_alpha: float = 2.0,
        **options: Any,
    ) -> None:
        super().__init__(cutmix_alpha=cutmix_alpha, **options)
        if block is not None and not is_whole(block):
            raise ValueError(f"block is {block!r}, but must be the number of a block, or None")
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum is {momentum}, but must be between 0 and 1")
        for name, weight in (("clean_weight", clean_weight), ("area_weight", area_weight)):
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name} is {weight}, but must be finite and at least 0")
        if not 0 <= area_margin <= 1:
            raise ValueError(f"area_margin is {area_margin}, but a share of the image lies between 0 and 1")
        if not 0 <= mixup_margin <= 0.5:
            raise ValueError(f"mixup_margin is {mixup_margin}, but must be between 0 and 0.5")
        check_choice("upsampling", upsampling, UPSAMPLINGS)
        self.block = block
        self.momentum = momentum
        self.clean_weight = clean_weight
        self.area_weight = area_weight
        self.area_margin = area_margin
        self.mixup_margin = mixup_margin
        self.upsampling = upsampling
        self.mix_block: MixBlock | None = None
        self.average: MovingAverage | None = None

    def bind(self, view: BackboneView) -> None:
        """Finds the block; makes the Mix Block and the moving average."""
        super().bind(view)
        view.require_all_tokens()
        if self.block is None:
            self.block = len(view.blocks) // 2
        self.block = block_number(view, "block", self.block)
        if self.mix_block is None:
            like = next(view.model.parameters())
            block = MixBlock(view.block_width(self.block), generator=of_the_same_seed(self.generator))
            self.mix_block = block.to(like.device, like.dtype)
            self.average = MovingAverage(view.model, momentum=self.momentum)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw and apply; the moving average follows the model, and looks where a mask is predicted."""
        assert self.average is not None
        if view.model.training and torch.is_grad_enabled():
            self.average.follow(view.model)
        kind = self.sampler.kind(self.kinds)
        if kind == "keep":
            return Plan(Keep().apply(images))
        if kind == "blend":
            return Plan(self.sampler.blend(len(images), self.generator).apply(images))
        features = self._features(images)
        mixed = self._draw(images, features).apply(images)
        # its own draw, made even where nobody trains, so that looking at mixes draws what training would
        return Plan(mixed, Guide(images, features, self.partners(images), self._ratios(images)))

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """A mask by the Mix Block, as a constant."""
        return self._draw(images, self._features(images))

    def losses(self, view: BackboneView, plan: Plan, run: Run, targets: Tensor) -> dict[str, Tensor]:
        """The model's loss on the unmixed images, and the two that train the Mix Block alone."""
        guide, losses = plan.guide, {}
        if guide is None:
            return {}
        assert self.average is not None
        if self.clean_weight:
            losses["clean"] = self.clean_weight * F.cross_entropy(view(guide.images).float(), targets)
        mask = self._mask(guide.images, guide.features, guide.partners, guide.source_weight)
        mixed = PasteMask(guide.partners, mask, guide.source_weight).apply(guide.images)
        target = mix_targets(targets, mixed.source_index, mixed.source_weight)
        losses["generation"] = F.cross_entropy(self.average(mixed.images).float(), target)
        if self.area_weight:
            losses["area"] = self.area_weight * area_loss(mask, guide.source_weight, margin=self.area_margin)
        return losses

    def _features(self, images: Tensor) -> Features:
        assert self.average is not None
        assert self.block is not None
        return self.average.features(images, self.block)

    def _ratios(self, images: Tensor) -> Tensor:
        return self.pasted_shares(images).to(images.device, non_blocking=True)

    def _draw(self, images: Tensor, features: Features) -> PasteMask:
        """What the model is trained on."""
        partners, ratios = self.partners(images), self._ratios(images)
        # not under no_grad: autocast would keep the weights it casts there, for the Mix Block's own loss too
        mask = self._mask(images, features, partners, ratios).detach()
        plain = (ratios <= self.mixup_margin) | (ratios >= 1 - self.mixup_margin)
        mask = torch.where(plain[:, None, None], ratios.to(mask.dtype)[:, None, None], mask)
        return PasteMask(partners, mask, ratios)

    def _mask(self, images: Tensor, features: Features, partners: Tensor, ratios: Tensor) -> Tensor:
        """The source's share of every pixel, `[B, H, W]`, by the Mix Block."""
        assert self.mix_block is not None
        tokens, grid = features
        scores = self.mix_block(tokens, partners, ratios, grid)
        return upsampled_mask(scores, (images.shape[-2], images.shape[-1]), how=self.upsampling)
