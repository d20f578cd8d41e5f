"""TokenMixup (Choi et al., NeurIPS 2022): tokens mixed inside the network, across images and across layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.attention.call import AttentionCall
from attnmix.attention.flow import MIXES_CHANNELS, ChannelAttention, attention_steps, share_out
from attnmix.attention.intervene import changed_tokens, peek, shared_memory
from attnmix.attention.quantities import first_row
from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan
from attnmix.methods.blocks import block_number, refuse_checkpointing
from attnmix.methods.choice import Choice
from attnmix.methods.heads import of_the_same_seed
from attnmix.methods.none import NoMix
from attnmix.methods.score_net import ScoreNet, difficulty, easy_samples
from attnmix.mixing import mix_targets
from attnmix.mixing.draws import check_choice
from attnmix.mixing.tokens import TokenSwap, swap_random, swap_salient


def salient_tokens(scores: Tensor, kappa: int) -> Tensor:
    """Places of the kappa highest scores, in any order: `[B, N]` -> `[B, kappa]` int64."""
    return scores.topk(kappa, dim=1, sorted=False).indices


@dataclass
class _Step:
    """What happens to the tokens during one training forward."""

    label: Tensor  # [B, C], of the mixed images, before tokens are mixed
    image_size: Sequence[int]
    difficulty: Tensor | None = None  # [B]
    score: Tensor | None = None  # ScoreNet's logits [B, C]
    swap: TokenSwap | None = None
    gain: Tensor | None = None  # [B], summed over the swapped tokens
    memory_tokens: int = 0  # per image

    def stats(self) -> dict[str, Tensor]:
        """Scalars without gradient."""
        found = {}
        if self.swap is not None and self.gain is not None:
            mixed = self.swap.mask.any(dim=1)
            count = mixed.sum().clamp_min(1)
            found["mixed_samples"] = mixed.float().mean()
            found["mixed_tokens"] = self.swap.mask.sum() / count
            found["saliency_gain"] = torch.where(mixed, self.gain, 0.0).sum() / count
        if self.difficulty is not None:
            found["difficulty"] = self.difficulty.mean()
        if self.memory_tokens:
            found["memory_tokens"] = self.label.new_full((), self.memory_tokens)
        return {name: value.detach().float() for name, value in found.items()}


class TokenMixup(MixMethod):
    """TokenMixup (Choi et al., NeurIPS 2022): mixes tokens inside the network, on top of any mix of pixels.

    Horizontal (HTM, Algorithm 1): before one block, each sample that ScoreNet finds easy is matched with a
    partner, all pairs at once so that the saliency gained is largest, and takes over the partner's tokens where
    they are more salient by more than rho; the label is mixed by the saliency on either side (eq. 11). Saliency
    is the block's own attention on the unmixed tokens: the class token's row, or the mean of the image tokens'.
    Vertical (VTM, Algorithm 2): one block's queries also attend to the kappa most salient tokens at each earlier
    block's input. The model stays unmodified, the batch keeps its order, and everything happens in the one
    training forward; in evaluation mode, or without gradient, a step is that of `base`.

    If no sample is easy (`tau=0`) or no token leads by rho, HTM leaves batch and labels as `base` made them.
    Steps that `base` leaves unmixed because of its `prob` stay plain. `mixed` in the result is `base`'s. Eq. 11
    mixes whole labels: those of a base that follows tokens (TL-Align, SMMix's regions) are taken as they would be
    without the swap. Under `torch.compile` the forwards in which tokens are mixed run uncompiled.

    Blocks count from 0, negative ones from the last, where the paper counts layers from 1. The paper's settings:
    CCT-7/3x1 on CIFAR-100 `horizontal=2, tau=0.2, rho=0.005, vertical=2, kappa=80`; on CIFAR-10 `horizontal=2,
    tau=0.1, rho=0.003, vertical=1, kappa=5`, `horizontal=1, vertical=2` together; ViT-B/16 on ImageNet
    `horizontal=3, tau=0.1, rho=0.01, kappa=3`, `vertical=3`, or 4 together with HTM.

    Args:
        num_classes: classes of the labels.
        horizontal: block before which samples exchange tokens; None: not at all.
        vertical: block that attends to earlier blocks' tokens too; None: none does.
        base: how pixels are mixed before: a method's name (`cutmix` draws Mixup half of the time by default,
            `none` mixes tokens alone), or a method.
        tau: a sample is easy if `difficulty_scale` times its difficulty, ScoreNet's cross-entropy, is at most
            tau; inf: all are.
        difficulty_scale: 0.1 is the authors' code, to which the paper's tau belongs; 1 is Algorithm 1 read
            literally.
        rho: least lead in attention for which a token is replaced; rows of attention sum to 1, so a model with
            few tokens needs a larger one.
        kappa: tokens that each earlier block contributes.
        score_pool: what ScoreNet reads: `class`, `attention`, `mean` (see `ScoreNet`), or `auto`: the class
            token where the block has one, else attention.
        score_weight: of ScoreNet's loss; None: 1 with a class token (ViT), 0.001 without (CCT).
        score_stop_gradient: keep that loss from the model; None: yes with a class token, no without.
        score_at: `block`, difficulty by ScoreNet; `final`, by the model's own prediction in one more forward,
            without ScoreNet (supplement I).
        samples: `easy`, or `random` as the paper's baseline (supplement H.1), without ScoreNet.
        random_samples: the chance of each sample to be taken then, if below 1; else how many of a batch. The
            paper takes 5 of 128.
        tokens: `salient`; or `random` as the paper's baseline (supplement H.2): partners and as many tokens as
            would be salient on average, and VTM's tokens, at random.
        smoothing: label smoothing of a base by name, None: its own default; one that is a method keeps its own.
        seed: of the one generator of this method and its base (in the place of the base's own), and of
            ScoreNet's initial weights.
        base_options: options of `base`, where it is named.

    Raises:
        ValueError: a value outside its range; neither of the two parts; a base with a training step of its own.
    """

    base_option = "base"
    base_defaults: ClassVar[dict[str, dict[str, Any]]] = {"cutmix": {"mixup_prob": 0.5}}  # DeiT's recipe

    about = About(
        paper="Choi et al., NeurIPS 2022",
        images="as `base` (CutMix), then tokens between samples and layers",
        labels="`base`'s, mixed by saliency",
        parameters=True,
        more="an assignment, a few more keys",
    )

    def __init__(
        self,
        *,
        num_classes: int,
        horizontal: int | None = 2,
        vertical: int | None = 2,
        base: str | MixMethod = "cutmix",
        tau: float = 0.1,
        difficulty_scale: float = 0.1,
        rho: float = 0.01,
        kappa: int = 3,
        score_pool: str = "auto",
        score_weight: float | None = None,
        score_stop_gradient: bool | None = None,
        score_at: str = "block",
        samples: str = "easy",
        random_samples: float = 5 / 128,
        tokens: str = "salient",
        smoothing: float | None = None,
        seed: int = 0,
        **base_options: Any,
    ) -> None:
        # checked here; what counts is the base's, below
        super().__init__(num_classes=num_classes, smoothing=0.0 if smoothing is None else smoothing, seed=seed)
        if horizontal is None and vertical is None:
            raise ValueError('horizontal and vertical are both None: name a block for one, or use "base" itself')
        for name, block in (("horizontal", horizontal), ("vertical", vertical)):
            if block is not None and not isinstance(block, int):
                raise ValueError(f"{name} is {block!r}, but must be the number of a block, or None")
        for name, value in (("tau", tau), ("rho", rho), ("score_weight", score_weight)):
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is {value}, but must be at least 0")
        if not 0 < difficulty_scale < float("inf"):
            raise ValueError(f"difficulty_scale is {difficulty_scale}, but must be above 0 and finite")
        if not isinstance(kappa, int) or kappa < 1:
            raise ValueError(f"kappa is {kappa}, but must be a whole number of tokens, at least 1")
        if not random_samples >= 0 or (random_samples > 1 and random_samples % 1):
            raise ValueError(
                f"random_samples is {random_samples}, but must be a chance below 1, or a whole number of samples"
            )
        check_choice("score_pool", score_pool, ("auto", "class", "attention", "mean"))
        check_choice("score_at", score_at, ("block", "final"))
        check_choice("samples", samples, ("easy", "random"))
        check_choice("tokens", tokens, ("salient", "random"))
        self.horizontal = horizontal
        self.vertical = vertical
        self.tau = tau
        self.difficulty_scale = difficulty_scale
        self.rho = rho
        self.kappa = kappa
        self.score_pool = score_pool
        self.score_weight = score_weight
        self.score_stop_gradient = score_stop_gradient
        self.score_at = score_at
        self.samples = samples
        self.random_samples = random_samples
        self.tokens = tokens
        self.score_net: ScoreNet | None = None
        if smoothing is not None and isinstance(base, str):
            base_options["smoothing"] = smoothing
        self.base = self._make_base(base, base_options, seed)
        self.smoothing = self.base.smoothing
        self.share_generator(self.generator)

    @property
    def shares(self) -> dict[str, float]:
        """The base's: how often a step keeps, blends or pastes pixels."""
        return self.base.shares

    def bind(self, view: BackboneView) -> None:
        """Binds the base, finds the blocks, makes ScoreNet."""
        self.base.bind(view)
        view.require_all_tokens()
        refuse_checkpointing(view)
        if self.vertical is not None:
            block = block_number(view, "vertical", self.vertical)
            if block == 0:
                raise ValueError(
                    f"vertical is {self.vertical}, but the first block has no earlier block to take tokens from"
                )
            reason = view.appendable(block)
            if reason is not None:
                raise ValueError(
                    f"vertical={self.vertical} does not work on {view.name}: {reason}; use horizontal alone, "
                    "with vertical=None"
                )
        if self.horizontal is None:
            return
        block = block_number(view, "horizontal", self.horizontal)
        call = view.layout.calls[block]
        if isinstance(call, ChannelAttention):
            raise ValueError(f"horizontal is {self.horizontal}, but that block of {view.name} {MIXES_CHANNELS}")
        has_class = call.has_class_row
        if self.score_pool == "class" and not has_class:
            raise ValueError(
                f'score_pool is "class", but block {block} of {view.name} has no class token; '
                'use "attention" or "mean"'
            )
        if self.score_weight is None:
            self.score_weight = 1.0 if has_class else 0.001
        if self.score_stop_gradient is None:
            self.score_stop_gradient = has_class
        if self.score_net is None and self.samples == "easy" and self.score_at == "block":
            like = next(view.model.parameters())
            pool = ("class" if has_class else "attention") if self.score_pool == "auto" else self.score_pool
            net = ScoreNet(
                view.block_width(block),
                self.num_classes,
                pool=pool,
                prefix=view.block_prefix(block),
                generator=of_the_same_seed(self.generator),
            )
            self.score_net = net.to(like.device, like.dtype)

    def targets(self, labels: Labels) -> Tensor:
        """As the base makes them."""
        return self.base.targets(labels)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """The base's draw: pixels know nothing of tokens."""
        return self.base.plan(view, images, labels)

    def forward(self, view: BackboneView, images: Tensor, labels: Labels) -> dict[str, Any]:
        """The base's step, with tokens mixed during its training forward."""
        plan = self.plan(view, images, labels)
        targets = (plan.method or self.base).targets_of(plan, labels)
        step: _Step | None = None
        if self._acts(view, plan):
            label = mix_targets(targets, plan.mixed.source_index, plan.mixed.source_weight)
            step = _Step(label, plan.mixed.images.shape[-2:])
            if self.horizontal is not None and self.samples == "easy" and self.score_at == "final":
                step.difficulty = self._final_difficulty(view, plan.mixed.images, step.label)
            # a compiled model sees hooks unreliably, and would be compiled anew for those of every step
            plain = view if view.compiled is None else BackboneView(view.model)
            with self._intervening(plain, step):
                run = self.base.run(plain, plan)
        else:
            run = self.base.run(view, plan)

        target = mix_targets(targets, run.mixed.source_index, run.mixed.source_weight)
        losses = self.base.losses(view, plan, run, targets)
        if step is None:
            return self.base.outcome(run, target, losses)
        if step.swap is not None:
            target = step.swap.relabel(target)
        if step.score is not None:
            assert self.score_weight is not None
            losses = {**losses, "score": self.score_weight * F.cross_entropy(step.score.float(), step.label)}
        return self.base.outcome(run, target, losses, step.stats())

    def _acts(self, view: BackboneView, plan: Plan) -> bool:
        """Whether tokens are mixed: in training, unless the base chose to leave this batch alone."""
        drawn_by = plan.method or self.base
        plain = plan.mixed.draw.kind == "keep" and not isinstance(drawn_by, NoMix)
        return view.model.training and torch.is_grad_enabled() and not plain

    @contextmanager
    def _intervening(self, view: BackboneView, step: _Step) -> Iterator[None]:
        """The blocks concerned mix tokens, for one forward."""
        refuse_checkpointing(view)
        blocks = view.blocks
        with ExitStack() as stack:
            if self.horizontal is not None:  # first, so that VTM sees this block's tokens as they go in
                number = self.horizontal % len(blocks)
                change = partial(self._swap_tokens, view, step, number, blocks[number])
                stack.enter_context(changed_tokens(blocks[number], change))
            if self.vertical is not None:
                number = self.vertical % len(blocks)
                select = partial(self._remember, view, step)
                stack.enter_context(shared_memory(blocks[: number + 1], select, listen=self.tokens == "salient"))
            yield

    def _swap_tokens(
        self,
        view: BackboneView,
        step: _Step,
        number: int,
        block: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor:
        """HTM, before its block: Algorithm 1. The block's arguments -> its tokens, mixed."""
        tokens = args[0]
        with torch.no_grad():
            saliency = _saliency(view, number, peek(block, args, kwargs).call, step.image_size)  # eq. 2
        if self.score_net is not None:
            step.score = self.score_net(tokens.detach() if self.score_stop_gradient else tokens)
            step.difficulty = difficulty(step.score.detach(), step.label)  # eq. 1
        if step.difficulty is not None:
            easy = easy_samples(step.difficulty, tau=self.tau, scale=self.difficulty_scale)
        else:
            easy = self._draw_samples(len(tokens)).to(tokens.device, non_blocking=True)
        if self.tokens == "salient":
            step.swap = swap_salient(saliency, easy, rho=self.rho)
        else:
            step.swap = swap_random(saliency, easy, rho=self.rho, generator=self.generator)
        lead = saliency[step.swap.partner] - saliency - self.rho
        step.gain = torch.where(step.swap.mask, lead, 0.0).sum(dim=1)
        return step.swap.apply(tokens)

    def _remember(
        self, view: BackboneView, step: _Step, number: int, tokens: Tensor, call: AttentionCall | None
    ) -> Tensor:
        """VTM: the salient tokens of an earlier block's input, `[B, kappa, D]` (Algorithm 2, lines 3-6)."""
        images = tokens[:, view.block_prefix(number) :]
        batch, count, _ = images.shape
        if self.kappa > count:
            raise ValueError(f"kappa is {self.kappa}, but block {number} of {view.name} has {count} image tokens")
        if call is not None:
            scores = _saliency(view, number, call, step.image_size)
        else:
            drawn = torch.rand(batch, count, generator=self.generator)
            scores = drawn.to(images.device, non_blocking=True)
        step.memory_tokens += self.kappa
        return images.take_along_dim(salient_tokens(scores, self.kappa)[..., None], dim=1)

    def _draw_samples(self, batch: int) -> Tensor:
        """Random samples in the place of easy ones, `[B]` bool."""
        if self.random_samples < 1:
            return torch.rand(batch, generator=self.generator) < self.random_samples
        return torch.randperm(batch, generator=self.generator) < self.random_samples

    @torch.no_grad()
    def _final_difficulty(self, view: BackboneView, images: Tensor, label: Tensor) -> Tensor:
        """The model's own error on the mixed images, as at inference, `[B]`."""
        with view.evaluating():
            return difficulty(view(images), label)

    def _make_base(self, base: str | MixMethod, options: dict[str, Any], seed: int) -> MixMethod:
        if isinstance(base, str):
            from attnmix.methods.registry import create_method  # the table lists this method too

            options = {"seed": seed, **self.base_defaults.get(base, {}), **options}
            try:
                base = create_method(base, num_classes=self.num_classes, **options)
            except ValueError as error:
                raise ValueError(f"base: {error}") from error
        elif not isinstance(base, MixMethod):
            raise ValueError(f"base is {base!r}, but must be a method's name, as cutmix or none, or a method")
        elif options:
            raise ValueError(f"base is a method already: its options {sorted(options)} belong to its constructor")
        if base.num_classes != self.num_classes:
            raise ValueError(f"base has {base.num_classes} classes, TokenMixup {self.num_classes}")
        for member in base.modules():
            own = isinstance(member, MixMethod) and type(member).forward is not MixMethod.forward
            if own and not isinstance(member, Choice):
                raise ValueError(
                    f"base contains {type(member).__name__}, which has a training step of its own; use a method "
                    "that only mixes pixels and labels"
                )
        return base


def _saliency(view: BackboneView, number: int, call: AttentionCall, image_size: Sequence[int]) -> Tensor:
    """A block's own attention on its image tokens, `[B, N]`: the class token's row, or the image tokens' mean.

    Rows of attention over all keys sum to 1, to which rho belongs: nothing is scaled. Where a key stands for a
    cell of tokens (PVT), these share its attention (supplement F).
    """
    step = attention_steps(view.flow(image_size))[number]
    scores = first_row(call)[:, step.prefix :] if step.has_class_row else step.image_attention(call)
    return share_out(step.fold(scores), step.grid).flatten(1)
