"""SMMix (Chen et al., ICCV 2023): the model under training says what to mix and what to expect of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.attention import AttentionTap
from attnmix.backbone import BackboneView
from attnmix.methods.base import MixMethod
from attnmix.mixing import (
    Keep,
    MixedBatch,
    MixSampler,
    Paste,
    boxes_to_mask,
    fold_tokens,
    max_windows,
    min_windows,
    scale_boxes,
    window_size,
)
from attnmix.mixing.draws import check_choice


class Guide(NamedTuple):
    """What a pasted window leaves for the losses: clean logits `[B, C]`, tokens of the window `[B, N]` bool."""

    clean_logits: Tensor
    inside: Tensor


def max_min_windows(attention: Tensor, source_index: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Each pair's source window (most attended) and target window (least attended), in tokens (eq. 7).

    Args:
        attention: `[B, gh, gw]` of the clean batch.
        source_index: `[B]` int64; an image that is its own partner gets its target window twice.
        size: the windows' height and width in tokens.

    Returns:
        Two sets of boxes `[B, 4]`.
    """
    target_box = min_windows(attention, size)
    source_box = max_windows(attention, size)[source_index]
    own = source_index == torch.arange(len(source_index), device=source_index.device)
    return torch.where(own[:, None], target_box, source_box), target_box


def fine_loss(
    classify: Callable[[Tensor], Tensor],
    tokens: Tensor,
    inside: Tensor,
    targets: Tensor,
    source_index: Tensor,
) -> Tensor:
    """Half the sum of two cross-entropies: each region's mean token against its own image's label (eq. 10-13).

    Args:
        classify: `[B, D]` -> logits `[B, C]`.
        tokens: `[B, N, D]` final image tokens of the mixed image.
        inside: `[B, N]` bool, True = token of the pasted window, the same number in every row.
        targets: `[B, C]` the unmixed images' label distributions.
        source_index: `[B]` int64.

    Returns:
        A scalar. A window that covers the whole grid leaves nothing of the target: its half is then 0.
    """
    given = tokens.dtype
    tokens = tokens.to(torch.promote_types(given, torch.float32))  # half precision counts to 256 only
    in_source = inside.to(tokens.dtype)[:, :, None]
    in_target = 1 - in_source
    source_mean = (tokens * in_source).sum(dim=1) / in_source.sum(dim=1)  # eq. 10
    target_count = in_target.sum(dim=1)
    target_mean = (tokens * in_target).sum(dim=1) / target_count.clamp(min=1)  # eq. 11
    source_loss = F.cross_entropy(classify(source_mean.to(given)).float(), targets[source_index])
    target_losses = F.cross_entropy(classify(target_mean.to(given)).float(), targets, reduction="none")
    return 0.5 * (source_loss + (target_losses * (target_count[:, 0] > 0)).mean())  # eq. 13


def consistency_target(
    clean_logits: Tensor, source_index: Tensor, source_weight: Tensor, *, mix: str = "probabilities"
) -> Tensor:
    """What the mixed image should be predicted as, from the two clean predictions (eq. 14).

    Args:
        clean_logits: `[B, C]` of the unmixed batch.
        source_index: `[B]` int64.
        source_weight: `[B]`.
        mix: `probabilities`, the mixture of the two distributions (eq. 14 as it stands), or `logits`, the
            softmax of the mixed logits (the authors' code).

    Returns:
        `[B, C]` float32, rows sum to 1.
    """
    clean = clean_logits.float()
    if mix == "probabilities":
        clean = clean.softmax(dim=-1)
    mixed = torch.lerp(clean, clean[source_index], source_weight[:, None])
    return mixed if mix == "probabilities" else mixed.softmax(dim=-1)


class SMMix(MixMethod):
    """SMMix (Chen et al., ICCV 2023): max-min attention regions, labels per region, consistent predictions.

    A clean forward of the unmixed batch (no gradient, evaluation mode) gives image attention and predictions.
    The source's most attended window goes onto the target's least attended one (eq. 7, 8); the label weight is
    the window's area. Loss = classification + fine-grained + consistency (eq. 15). An image that is its own
    partner stays itself.

    Args:
        num_classes: classes of the labels.
        prob: share of steps mixed at all.
        mixup_prob: share of the mixed steps that draw Mixup instead (section 5.1: half).
        mixup_alpha: Mixup's weight is drawn from Beta(alpha, alpha).
        mode: of the Mixup draws, `batch`, `pair` or `elem`; the window's size is one per batch in any case.
        pairing: partner by `flip`, `roll` or `shuffle`.
        block: whose attention, counted over the model's attention layers; -1 is the last. Where that has a single
            query (CaiT's class attention, SigLIP's attention pool) that query's row is read.
        side_ratio: low and high of the window's side relative to the grid's (Table 8).
        side_law: `ratio`, delta ~ U(low, high), both sides floor(delta * side), or `integer`, the authors'
            code: uniform over the integers floor(low * side) .. floor(high * side).
        fine: train the window's mean token, and the rest's, on its own label (eq. 13).
        consistency: pull the mixed prediction to the mixture of the clean ones (eq. 14).
        consistency_mix: mix clean `probabilities` (eq. 14) or `logits` (the authors' code).
        token_head: classify region means by a linear layer of their own (the authors' code) instead of the
            model's head (the paper's F). It is trained and saved, and never part of the exported model.
        smoothing: label smoothing.
        seed: of the method's generator.

    Raises:
        ValueError: a value outside its range, naming it.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        prob: float = 1.0,
        mixup_prob: float = 0.5,
        mixup_alpha: float = 0.8,
        mode: str = "batch",
        pairing: str = "flip",
        block: int = -1,
        side_ratio: tuple[float, float] = (0.25, 0.75),
        side_law: str = "ratio",
        fine: bool = True,
        consistency: bool = True,
        consistency_mix: str = "probabilities",
        token_head: bool = False,
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes=num_classes, smoothing=smoothing, seed=seed)
        check_choice("side_law", side_law, ("ratio", "integer"))
        check_choice("consistency_mix", consistency_mix, ("probabilities", "logits"))
        if len(side_ratio) != 2 or not 0 <= side_ratio[0] <= side_ratio[1] <= 1:
            raise ValueError(f"side_ratio is {side_ratio}, but must be (low, high) with 0 <= low <= high <= 1")
        if token_head and not fine:
            raise ValueError("token_head classifies the regions of the fine-grained loss: it needs fine=True")
        self.sampler = MixSampler(prob, mixup_prob, mixup_alpha, mode=mode, pairing=pairing)
        self.block = block
        self.side_ratio = (float(side_ratio[0]), float(side_ratio[1]))
        self.side_law = side_law
        self.fine = fine
        self.consistency = consistency
        self.consistency_mix = consistency_mix
        self.has_token_head = token_head
        self.token_head: nn.Linear | None = None

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps, blends or pastes."""
        return self.sampler.shares

    def bind(self, view: BackboneView) -> None:
        """Needs every token in its place; makes the token head."""
        view.require_all_tokens()
        if self.has_token_head and self.token_head is None:
            like = next(view.model.parameters())
            head = nn.Linear(view.embed_dim, self.num_classes, device=like.device, dtype=like.dtype)
            nn.init.trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
            self.token_head = head

    def mix(self, view: BackboneView, images: Tensor) -> MixedBatch:
        """Draw and apply; looks at the model where a window is pasted."""
        return self._mix(view, images)[0]

    def forward(self, view: BackboneView, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """One step: clean pass, mix, training forward, three losses."""
        targets = self.targets(labels)
        mixed, guide = self._mix(view, images)
        if guide is None:
            return self.outcome(mixed, view(mixed.images), targets)

        output, tokens = view.forward_tokens(mixed.images)
        losses = {}
        if self.fine:
            classify = self.token_head or view.classify
            losses["fine"] = fine_loss(classify, tokens, guide.inside, targets, mixed.source_index)
        if self.consistency:
            target = consistency_target(
                guide.clean_logits, mixed.source_index, mixed.source_weight, mix=self.consistency_mix
            )
            student = output.float().log_softmax(dim=-1)
            losses["consistency"] = F.kl_div(student, target, reduction="batchmean")  # eq. 14
        return self.outcome(mixed, output, targets, **losses)

    def _mix(self, view: BackboneView, images: Tensor) -> tuple[MixedBatch, Guide | None]:
        """The mixed batch and, where a window was pasted, what the losses need of it."""
        batch = images.shape[0]
        kind = self.sampler.kind(self.generator)
        if kind == "keep":
            return Keep().apply(images), None
        if kind == "blend":
            return self.sampler.blend(batch, self.generator).apply(images), None

        grid = view.grid_size(images.shape[-2:])
        partners = self.sampler.partners(batch, self.generator).to(images.device, non_blocking=True)
        uniform = float(torch.rand((), generator=self.generator))
        size = window_size(uniform, grid=grid, side_ratio=self.side_ratio, side_law=self.side_law)
        attention, clean_logits = self._clean_pass(view, images)
        source_box, target_box = max_min_windows(fold_tokens(attention, grid), partners, size)
        offset = scale_boxes(source_box - target_box, view.patch_size)[:, :2]
        mixed = Paste(partners, scale_boxes(target_box, view.patch_size), offset).apply(images)
        return mixed, Guide(clean_logits, boxes_to_mask(target_box, grid).flatten(1))

    @torch.no_grad()
    def _clean_pass(self, view: BackboneView, images: Tensor) -> tuple[Tensor, Tensor]:
        """Image attention `[B, N]` and logits `[B, C]` of the unmixed batch, as at inference."""
        with view.evaluating(), AttentionTap(view.model, blocks=[self.block]) as tap:
            logits = view(images)
        return tap.image_attention(self.block), logits
