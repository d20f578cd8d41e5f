"""SMMix (Chen et al., ICCV 2023): the model under training says what to mix and what to expect of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan, Run
from attnmix.methods.guide import AttentionGuide
from attnmix.methods.heads import added_linear, of_the_same_seed
from attnmix.methods.label_names import named_label
from attnmix.mixing import (
    Keep,
    MixSampler,
    Paste,
    attention_windows,
    boxes_to_mask,
    fold_tokens,
    scale_boxes,
    window_size,
)
from attnmix.mixing.draws import check_choice


class Guide(NamedTuple):
    """What a pasted window leaves for the losses.

    `clean_logits` `[B, C]`, None where nothing needs them; `inside` `[B, N]` bool, True = token of the window,
    None where the box does not keep to the grid.
    """

    clean_logits: Tensor | None
    inside: Tensor | None


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
    partner stays itself. With `regions="cutmix"` and neither loss it is CutMix.

    Args:
        num_classes: classes of the labels.
        prob: share of steps mixed at all.
        mixup_prob: share of the mixed steps that draw Mixup instead (section 5.1: half).
        mixup_alpha: Mixup's weight is drawn from Beta(alpha, alpha).
        cutmix_alpha: with `regions="cutmix"`, the box's area is drawn from Beta(alpha, alpha).
        mode: one draw per `batch`, `pair` or `elem`, of Mixup and CutMix; a window's size is one per batch.
        pairing: partner by `flip`, `roll` or `shuffle`.
        regions: `attention`, windows chosen by attention, or `cutmix`, CutMix's boxes (Table 7).
        source: which window of the source, `max` or `random` (Table A4).
        target: where on the target, `min`, `max` or `corr`, the corresponding place (Table A4).
        attention: `image` (eq. 6), `image-rollout` or `random` (Table A5), `class`, `class-rollout`.
        block: whose attention, counted over the model's attention layers from 0; -1 is the last. Where that has a
            single query (CaiT's class attention, SigLIP's attention pool) that query's row is read.
        provider: a frozen model that motivates instead of the one under training, by its attention and its
            predictions (Table 9): timm's name, the folder of an exported run, or a module.
        provider_options: of `timm.create_model`, for that model.
        side_ratio: low and high of the window's side relative to the grid's (Table 8).
        side_law: `ratio`, delta ~ U(low, high), both sides floor(delta * side), or `integer`, the authors'
            code: uniform over the integers floor(low * side) .. floor(high * side).
        label: the source's label weight by `area`, or read from the training forward by `transmix` (Table 6),
            `transmix-image` (models without class token) or `tl-align`, each with its defaults.
        fine: train the window's mean token, and the rest's, on its own label (eq. 13).
        consistency: pull the mixed prediction to the mixture of the clean ones (eq. 14).
        consistency_mix: mix clean `probabilities` (eq. 14) or `logits` (the authors' code).
        token_head: classify region means by a linear layer of their own (the authors' code) instead of the
            model's head (the paper's F). It is trained and saved, and never part of the exported model.
        smoothing: label smoothing.
        seed: of the method's generator.

    Raises:
        ValueError: a value outside its range, naming it; options that exclude each other.
    """

    about = About(
        paper="Chen et al., ICCV 2023",
        images="most attended window onto the least attended one",
        labels="by area, per region, and the clean predictions",
        forwards=1,
        more="less with `consistency=false`",
    )
    moves_content = True

    def __init__(
        self,
        *,
        num_classes: int,
        prob: float = 1.0,
        mixup_prob: float = 0.5,
        mixup_alpha: float = 0.8,
        cutmix_alpha: float = 1.0,
        mode: str = "batch",
        pairing: str = "flip",
        regions: str = "attention",
        source: str = "max",
        target: str = "min",
        attention: str = "image",
        block: int = -1,
        provider: str | nn.Module | None = None,
        provider_options: Mapping[str, Any] | None = None,
        side_ratio: tuple[float, float] = (0.25, 0.75),
        side_law: str = "ratio",
        label: str = "area",
        fine: bool = True,
        consistency: bool = True,
        consistency_mix: str = "probabilities",
        token_head: bool = False,
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes=num_classes, smoothing=smoothing, seed=seed)
        check_choice("regions", regions, ("attention", "cutmix"))
        check_choice("source", source, ("max", "random"))
        check_choice("target", target, ("min", "max", "corr"))
        check_choice("side_law", side_law, ("ratio", "integer"))
        check_choice("consistency_mix", consistency_mix, ("probabilities", "logits"))
        if len(side_ratio) != 2 or not 0 <= side_ratio[0] <= side_ratio[1] <= 1:
            raise ValueError(f"side_ratio is {side_ratio}, but must be (low, high) with 0 <= low <= high <= 1")
        if token_head and not fine:
            raise ValueError("token_head classifies the regions of the fine-grained loss: it needs fine=True")
        if regions == "cutmix" and fine:
            raise ValueError(
                'the fine-grained loss needs windows of whole tokens: regions="cutmix" needs fine=False'
            )
        self.sampler = MixSampler(prob, mixup_prob, mixup_alpha, cutmix_alpha, mode, pairing)
        self.guide = AttentionGuide(attention, block, provider, provider_options)
        self.label = named_label(label)
        self.regions = regions
        self.source = source
        self.target = target
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
        """Needs every token in its place, and the attention it reads; makes the token head."""
        super().bind(view)
        view.require_all_tokens()
        self.guide.bind(view, reader="SMMix")
        provider = self.guide.provider
        if provider is not None and self.consistency and provider.num_classes != self.num_classes:
            raise ValueError(
                f"the provider {provider.name} predicts {provider.num_classes} classes, not {self.num_classes}: "
                "give one of as many classes, or consistency=False"
            )
        if self.has_token_head and self.token_head is None:
            like = next(view.model.parameters())
            head = added_linear(view.embed_dim, self.num_classes, generator=of_the_same_seed(self.generator))
            self.token_head = head.to(like.device, like.dtype)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw and apply; looks at the model where a window is pasted."""
        batch = images.shape[0]
        size = images.shape[-2], images.shape[-1]
        kind = self.sampler.kind(self.kinds)
        if kind == "keep":
            return Plan(Keep().apply(images))
        if kind == "blend":
            return Plan(self.sampler.blend(batch, self.generator).apply(images))
        if self.regions == "cutmix":
            mixed = self.sampler.paste(batch, size, self.generator).apply(images)
            return Plan(mixed, Guide(self.guide.clean_logits(view, images) if self.consistency else None, None))

        grid = view.grid_size(size)
        partners = self.sampler.partners(batch, self.generator).to(images.device, non_blocking=True)
        uniform = float(torch.rand((), generator=self.generator))
        window = window_size(uniform, grid=grid, side_ratio=self.side_ratio, side_law=self.side_law)
        clean_logits, attention = self._clean_pass(view, images)
        source_box, target_box = attention_windows(
            fold_tokens(attention, grid),
            partners,
            window,
            source=self.source,
            target=self.target,
            generator=self.generator,
        )
        offset = scale_boxes(source_box - target_box, view.patch_size)[:, :2]
        mixed = Paste(partners, scale_boxes(target_box, view.patch_size), offset).apply(images)
        return Plan(mixed, Guide(clean_logits, boxes_to_mask(target_box, grid).flatten(1)))

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """The training forward, with its final tokens where the fine-grained loss wants them."""
        if plan.guide is None or not self.fine:
            return super().run(view, plan)
        (output, tokens), mixed = self.label(view, plan.mixed, view.forward_tokens, self.generator)
        return Run(output, mixed, tokens)

    def losses(self, view: BackboneView, plan: Plan, run: Run, targets: Tensor) -> dict[str, Tensor]:
        """The fine-grained and the consistency loss, where a window was pasted."""
        losses: dict[str, Tensor] = {}
        guide, index = plan.guide, run.mixed.source_index
        if guide is None:
            return losses
        if run.tokens is not None:
            classify = self.token_head or view.classify
            losses["fine"] = fine_loss(classify, run.tokens, guide.inside, targets, index)
        if guide.clean_logits is not None:
            # eq. 14 mixes by the window's area, also where the label is another policy's
            target = consistency_target(
                guide.clean_logits, index, plan.mixed.source_weight, mix=self.consistency_mix
            )
            student = run.output.float().log_softmax(dim=-1)
            losses["consistency"] = F.kl_div(student, target, reduction="batchmean")
        return losses

    def _clean_pass(self, view: BackboneView, images: Tensor) -> tuple[Tensor | None, Tensor]:
        """Logits `[B, C]` and attention `[B, N]` of the unmixed batch, as far as anything needs them."""
        read = self.source == "max" or self.target != "corr"
        if self.guide.attention != "random" and read:
            if self.consistency:
                return self.guide.clean(view, images)
            return None, self.guide.clean_attention(view, images)
        attention = self.guide.draw(view, images, self.generator)
        return self.guide.clean_logits(view, images) if self.consistency else None, attention
