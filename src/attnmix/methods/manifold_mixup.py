"""Manifold Mixup (Verma et al., ICML 2019): Mixup of hidden states, at a layer drawn anew for every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnmix.attention.intervene import changed_tokens
from attnmix.backbone import BackboneView
from attnmix.methods.about import About
from attnmix.methods.base import Labels, MixMethod, Plan, Run
from attnmix.methods.blocks import refuse_checkpointing
from attnmix.mixing import Keep, MixedBatch, MixSampler
from attnmix.mixing.whole_numbers import is_whole


def blend_states(states: Tensor, source_index: Tensor, source_weight: Tensor) -> Tensor:
    """Each sample's hidden state blended with its partner's (the paper's Mix).

    Args:
        states: `[B, ...]`, prefix tokens included.
        source_index: `[B]` int64.
        source_weight: `[B]` in [0, 1].

    Returns:
        The same shape and type; equal states stay equal to the bit.
    """
    weight = source_weight.to(states.dtype).view(-1, *[1] * (states.ndim - 1))
    return torch.lerp(states, states[source_index], weight)


def paper_layers(blocks: int) -> tuple[int, ...]:
    """The paper's eligible layers for a model of this many blocks: the input, a quarter and half of the way up.

    The paper's ResNets mix the input, or the output of the first or the second of their four stages.
    """
    hidden = {max(1, blocks // 4), max(1, blocks // 2)}
    return (0, *sorted(layer for layer in hidden if layer < blocks))


@dataclass(frozen=True)
class HiddenBlend:
    """Mixup of what goes into a block: the pixels stay as they are.

    Attributes:
        source_index: `[B]` int64.
        source_weight: `[B]` float32 in [0, 1].
        layer: the block, counted from 0, whose input is blended.
    """

    source_index: Tensor
    source_weight: Tensor
    layer: int

    kind: ClassVar[str] = "hidden"

    def apply(self, images: Tensor) -> MixedBatch:
        """`[B, C, H, W]` -> the same tensor, not a copy, with the labels' weights."""
        index = self.source_index.to(images.device, non_blocking=True)
        weight = self.source_weight.to(images.device, non_blocking=True)
        return MixedBatch(images, index, weight, None, self)


class ManifoldMixup(MixMethod):
    """Manifold Mixup (Verma et al., ICML 2019): hidden states and labels blended by one weight.

    Every mixed step draws one eligible layer, for the whole batch. Layer 0 is the image: plain Mixup. Layer l is
    what goes into block l, counted from 0, that is, the tokens after l blocks, prefix tokens included; what goes
    into block 0 is no layer of its own, since a linear patch embedding makes the same of it as of mixed pixels.
    Blocks are those that take the image tokens, of all stages; class attention behind them (CaiT) is none. The
    model stays unmodified. Where tokens are mixed, `mixed` in the result shows the images as they went in. With
    `layers=[0]` it is Mixup.

    Under `torch.compile` steps that mix tokens run uncompiled. As TokenMixup's base, use layers up to the block
    before TokenMixup's: it mixes labels as if tokens had been blended before.

    Args:
        num_classes: classes of the labels.
        layers: the eligible layers, drawn with equal chances; None: the paper's, as far up as in its ResNets: the
            image, a quarter and half of the blocks (0, 3 and 6 of DeiT's 12).
        prob: share of steps mixed at all.
        mixup_alpha: the weight is drawn from Beta(alpha, alpha); 2 is the authors' for CIFAR.
        mode: one weight per `batch` (the paper), `pair` or `elem`.
        pairing: partner by `flip`, `roll` or `shuffle` (the paper).
        smoothing: label smoothing.
        seed: of the method's generator.

    Raises:
        ValueError: a value outside its range; a layer that the model does not have; hidden layers of a model that
            checkpoints gradients or drops patches.
    """

    about = About(
        paper="Verma et al., ICML 2019",
        images="blended, or their tokens before a block",
        labels="by blending weight",
        needs=("no gradient checkpointing",),
    )

    def __init__(
        self,
        *,
        num_classes: int,
        layers: Sequence[int] | None = None,
        prob: float = 1.0,
        mixup_alpha: float = 2.0,
        mode: str = "batch",
        pairing: str = "flip",
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(num_classes=num_classes, smoothing=smoothing, seed=seed)
        if layers is not None:
            named = [] if isinstance(layers, str | int) else list(layers)
            if not named or not all(map(is_whole, named)) or min(named) < 0 or len(set(named)) < len(named):
                raise ValueError(
                    f"layers is {layers!r}, but must be a list of different layers: 0 for the image, l for the "
                    "tokens after l blocks"
                )
            layers = tuple(named)
        self.layers = layers
        self.sampler = MixSampler(prob=prob, mixup_prob=1.0, mixup_alpha=mixup_alpha, mode=mode, pairing=pairing)

    @property
    def shares(self) -> dict[str, float]:
        """How often a step keeps or blends."""
        return self.sampler.shares

    def bind(self, view: BackboneView) -> None:
        """Finds the layers."""
        super().bind(view)
        count = len(view.blocks)
        if self.layers is None:
            self.layers = paper_layers(count)
        if max(self.layers) >= count:
            raise ValueError(
                f"layers has {max(self.layers)}, but {view.name} has {count} blocks: 0 is the image, 1 to "
                f"{count - 1} the tokens after as many blocks"
            )
        if max(self.layers) > 0:
            view.require_all_tokens()
            refuse_checkpointing(view)

    def plan(self, view: BackboneView, images: Tensor, labels: Labels) -> Plan:
        """Draw whether, where and how strongly to blend; blends pixels alone."""
        if self.sampler.kind(self.kinds) == "keep":
            return Plan(Keep().apply(images))
        assert self.layers is not None
        blend = self.sampler.blend(len(images), self.generator)
        layer = self.layers[0]
        if len(self.layers) > 1:
            layer = self.layers[int(torch.randint(len(self.layers), (), generator=self.kinds))]
        if layer == 0:
            return Plan(blend.apply(images))
        return Plan(HiddenBlend(blend.source_index, blend.source_weight, layer).apply(images))

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """The training forward, with the tokens blended on their way into the drawn block."""
        mixed = plan.mixed
        if not isinstance(mixed.draw, HiddenBlend):
            return super().run(view, plan)
        refuse_checkpointing(view)
        # a compiled model sees hooks unreliably, and would be compiled anew for each layer
        plain = view if view.compiled is None else BackboneView(view.model)
        blended = []

        def blend(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            blended.append(True)
            return blend_states(args[0], mixed.source_index, mixed.source_weight)

        with changed_tokens(plain.blocks[mixed.draw.layer], blend):
            run = super().run(plain, plan)
        if not blended:
            raise ValueError(
                f"block {mixed.draw.layer} of {view.name} ran without its tokens being mixed: compile the whole "
                "model, not its blocks"
            )
        return run
