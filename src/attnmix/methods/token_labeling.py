"""Token labeling (Jiang et al., NeurIPS 2021): every image token has a label of its own, a teacher's."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, Plan, Run
from attnmix.methods.heads import added_linear, of_the_same_seed
from attnmix.methods.label_source import Taught
from attnmix.mixing import (
    Draw,
    MixedBatch,
    class_labels,
    even_cutmix_boxes,
    mask_to_grid,
    soft_targets,
    token_boxes,
)
from attnmix.mixing.draws import check_choice
from attnmix.mixing.label_maps import pooled_distribution, resized_scores


def token_labels(scores: Tensor, grid: tuple[int, int], *, smoothing: float = 0.0) -> Tensor:
    """Each token's own label: softmax of the scores in its place, `[B, C, h, w]` -> `[B, N, C]`, rows sum to 1."""
    seen = resized_scores(scores, grid).flatten(2).softmax(dim=1).transpose(1, 2)
    return seen * (1 - smoothing) + smoothing / seen.shape[2]


def mixed_token_labels(labels: Tensor, mixed: MixedBatch, grid: tuple[int, int]) -> Tensor:
    """Labels of the mixed image's tokens: each is its own image's (MixToken, section 3.3).

    A token of both images, where pixels are blended or a box does not keep to the grid, has both labels by share.

    Args:
        labels: `[B, N, C]` of the unmixed images.
        mixed: how they were mixed, in place.
        grid: rows and columns of tokens.

    Returns:
        `[B, N, C]`, rows sum to 1.
    """
    pixels = mixed.source_map
    if pixels is None:
        share = mixed.source_weight[:, None].expand(-1, labels.shape[1])
    else:
        share = mask_to_grid(pixels, grid, how="area")
    return torch.lerp(labels, labels[mixed.source_index], share[:, :, None].to(labels.dtype))


def token_loss(classify: Callable[[Tensor], Tensor], tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of image tokens against their own labels (section 3.2).

    Args:
        classify: `[n, D]` -> logits `[n, C]`.
        tokens: `[B, N, D]` final image tokens.
        labels: `[B, N, C]`.

    Returns:
        A scalar.
    """
    return F.cross_entropy(classify(tokens.flatten(0, 1)).float(), labels.flatten(0, 1))


def blended_with_truth(seen: Tensor, truth: Tensor) -> Tensor:
    """The teacher's label, with a part of the ground truth (the authors' loss with ground truth).

    That part is half where the teacher's best class is the right one, and a tenth where it is not.

    Args:
        seen: `[B, C]` by the teacher.
        truth: `[B, C]`.

    Returns:
        `[B, C]`, rows sum to 1.
    """
    agree = seen.argmax(dim=1) == truth.argmax(dim=1)
    return torch.lerp(seen, truth, torch.where(agree, 0.5, 0.1)[:, None])


class TokenLabeling(Taught):
    """Token labeling with MixToken (Jiang et al., NeurIPS 2021), which trained LV-ViT.

    Loss = cross-entropy of the image's label + `dense_weight` * mean cross-entropy of every final image token
    against its own label: the softmax of a teacher's scores in the token's place, in the image it is of. Images
    that are not mixed have token labels too.

    MixToken pastes a box of tokens after the patch embedding. Where patches do not overlap that is a box of whole
    patches in the pixels, which is what is done here; an embedding by overlapping convolutions (LV-ViT's own) sees
    the border. The token head serves training alone: the authors add half of its largest output at inference.

    Args:
        teacher: a frozen model asked once a step, without gradient: timm's name for it, the folder of an exported
            run, a module, or `self`, the model under training as it stands. Without one labels have to come with
            label maps.
        teacher_options: of `timm.create_model`, for a teacher given by name; `pretrained` is on by default.
        dense_weight: of the tokens' loss; 0 leaves it out, and asks nobody if `class_label` is `truth`.
        token_head: classify tokens by a linear layer of their own (paper), or by the model's classifier. It is
            trained and saved, and never part of the exported model.
        class_label: the whole image's label: `truth`, the labels given (paper); `teacher`, the teacher's
            pooled over the image (the authors' code); `both`, mixed (their code with ground truth).
        box: `token`, MixToken's boxes in whole patches of every size, none empty; `even`, the authors' code, even
            sides of patches only, some empty; `pixel`, CutMix's own.
        smoothing: label smoothing, of token labels too.
        options: as `Pasting`'s.

    Raises:
        ValueError: a value outside its range; neither teacher nor label maps.
    """

    about = About(
        paper="Jiang et al., NeurIPS 2021",
        images="a box of whole patches pasted",
        labels="by area, and a teacher's for every token",
        teacher_forwards=1,
        parameters=True,
        needs=("a teacher or label maps",),
    )
    own_labels = True

    def __init__(
        self,
        *,
        teacher: str | nn.Module | None = None,
        teacher_options: Mapping[str, Any] | None = None,
        dense_weight: float = 0.5,
        token_head: bool = True,
        class_label: str = "truth",
        box: str = "token",
        **options: Any,
    ) -> None:
        super().__init__(teacher=teacher, teacher_options=teacher_options, **options)
        check_choice("class_label", class_label, ("truth", "teacher", "both"))
        check_choice("box", box, ("token", "even", "pixel"))
        if not (dense_weight >= 0 and math.isfinite(dense_weight)):
            raise ValueError(f"dense_weight is {dense_weight}, but must be finite and not negative")
        self.dense_weight = dense_weight
        self.class_label = class_label
        self.box = box
        self.has_token_head = token_head and dense_weight > 0
        self.token_head: nn.Linear | None = None

    @property
    def asks(self) -> bool:
        """Whether score maps are looked at."""
        return self.dense_weight > 0 or self.class_label != "truth"

    def bind(self, view: BackboneView) -> None:
        """As `Taught`; makes the token head."""
        super().bind(view)
        if self.has_token_head and self.token_head is None:
            like = next(view.model.parameters())
            head = added_linear(view.embed_dim, self.num_classes, generator=of_the_same_seed(self.generator))
            self.token_head = head.to(like.device, like.dtype)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """The mix, and what the teacher says of the unmixed images: `guide` is `[B, N, C]`, or None."""
        plan = super().plan(view, images, labels)
        if not self.asks:
            return plan
        scores = self.scores(view, images, labels)
        dense = None
        if self.dense_weight > 0:
            dense = token_labels(scores, view.grid_size(images.shape[-2:]), smoothing=self.smoothing)
        return replace(plan, guide=dense, targets=self._class_targets(scores, labels))

    def paste(self, view: BackboneView, images: Tensor, labels: Labels) -> Draw:
        """A box of whole patches."""
        size = images.shape[-2], images.shape[-1]
        if self.box == "pixel":
            return self.sampler.paste(len(images), size, self.generator)
        boxes = token_boxes if self.box == "token" else even_cutmix_boxes
        patch = view.token_patch_size
        return self.sampler.paste(len(images), size, self.generator, patch_size=patch, boxes=boxes)

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """The training forward, with its final tokens."""
        if plan.guide is None:
            return super().run(view, plan)
        (output, tokens), mixed = self.label(view, plan.mixed, view.forward_tokens, self.generator)
        return Run(output, mixed, tokens)

    def losses(self, view: BackboneView, plan: Plan, run: Run, targets: Tensor) -> dict[str, Tensor]:
        """The tokens' loss."""
        if run.tokens is None:
            return {}
        labels = mixed_token_labels(plan.guide, plan.mixed, view.grid_size(plan.mixed.images.shape[-2:]))
        return {"tokens": self.dense_weight * token_loss(self.token_head or view.classify, run.tokens, labels)}

    def _class_targets(self, scores: Tensor, labels: Labels) -> Tensor | None:
        """What is expected of the whole unmixed images, `[B, C]`; None leaves it to the labels."""
        if self.class_label == "truth":
            return None
        seen = pooled_distribution(scores)
        # made, and so checked, where it does not count too
        truth = soft_targets(class_labels(labels), num_classes=self.num_classes)
        if self.class_label == "both":
            seen = blended_with_truth(seen, truth)
        return soft_targets(seen, num_classes=self.num_classes, smoothing=self.smoothing)
