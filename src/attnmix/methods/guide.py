"""Whose attention guides the mixing, and which quantity of it: what the papers ablate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnmix.attention import AttentionTap
from attnmix.attention.flow import share_out
from attnmix.attention.rollout import mean_over_blocks
from attnmix.backbone import BackboneView
from attnmix.methods.frozen import as_seen_by, frozen_model
from attnmix.mixing import fold_tokens
from attnmix.mixing.draws import check_choice
from attnmix.mixing.whole_numbers import is_whole

ATTENTIONS = ("class", "image", "class-rollout", "image-rollout", "random")
Result = TypeVar("Result")


def check_block(block: int) -> None:
    """Raise ValueError unless this is the number of a block, which a model may or may not have."""
    if not is_whole(block):
        raise ValueError(f"block is {block!r}, but must be a whole number, counted from 0; -1 is the last")


class AttentionGuide:
    """One score per image token, `[B, N]` on the model's final grid.

    Args:
        attention: `class`, the class token's row or the attention pool's (TransMix eq. 3-6); `image`, the mean
            over the image tokens' rows (SMMix eq. 6), which needs no class token; `class-rollout`, the class row
            of the product of all blocks' attention (TransMix, Table 9); `image-rollout`, the mean of all blocks'
            image attention (SMMix, Table A5); `random`, uniform numbers (SMMix, Table A5).
        block: whose attention, counted over the model's attention layers from 0; -1 is the last.
        provider: another model, frozen, in the place of the one under training (TransMix, Table 6; SMMix,
            Table 9): timm's name for it, the folder of an exported run, or a module.
        provider_options: of `timm.create_model`, for a provider given by name; `pretrained` is on by default.

    Raises:
        ValueError: unknown attention, a block that is no whole number, options without a provider, a provider that
            cannot be made.
    """

    def __init__(
        self,
        attention: str,
        block: int,
        provider: str | nn.Module | None = None,
        provider_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_choice("attention", attention, ATTENTIONS)
        check_block(block)
        if provider_options and not isinstance(provider, str):
            raise ValueError(f"provider_options {dict(provider_options)} need a provider given by name")
        if provider is not None and attention == "random":
            raise ValueError('attention="random" looks at no model: leave provider out')
        self.attention = attention
        self.block = block
        self.blocks = None if attention.endswith("rollout") else [block]
        # no submodule of the method: it is neither trained nor saved
        self.provider = None if provider is None else BackboneView(frozen_model(provider, provider_options))

    def bind(self, view: BackboneView, *, reader: str, way_out: str | None = None) -> None:
        """Check that the attention can be read from this model, or from the provider.

        Args:
            view: the model under training.
            reader: the method's name, for messages.
            way_out: the option to use where there is no class row; None: this guide's own.

        Raises:
            ValueError: no class row, no such block, tokens that change between blocks under a rollout.
        """
        if self.attention == "random":
            return
        view = self.provider or view
        view.require_all_tokens()
        if self.attention.startswith("class") and not view.has_class_row:
            other = self.attention.replace("class", "image")
            way_out = way_out or f'attention="{other}"'
            raise ValueError(
                f"{view.name} classifies by no class token whose attention {reader} could read; "
                f"use {way_out}, or a model with a class token"
            )
        view.check_guide(self.blocks, self.attention)

    def during(
        self, view: BackboneView, images: Tensor, forward: Callable[[Tensor], Result], generator: torch.Generator
    ) -> tuple[Result, Tensor]:
        """`forward(images)`, and the attention on these images: of that very forward, or the provider's."""
        if self.attention == "random":
            return forward(images), self.draw(view, images, generator)
        if self.provider is not None:
            attention = self.clean_attention(view, images)
            return forward(images), attention
        with view.open_tap(self.blocks) as tap:
            result = forward(images)
        return result, self._read(view, tap, images)

    @torch.no_grad()
    def clean(self, view: BackboneView, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[B, C]` and attention of a forward as at inference: the model's, or the provider's."""
        guide, seen = self._guide(view, images)
        with guide.evaluating(), guide.open_tap(self.blocks) as tap:
            logits = self._forward(guide, seen)
        return logits, self._on_grid_of(view, images, guide, tap, seen)

    @torch.no_grad()
    def clean_attention(self, view: BackboneView, images: Tensor) -> Tensor:
        """The attention alone: the forward goes no further than the block that it is read from."""
        guide, seen = self._guide(view, images)
        with guide.evaluating(), guide.open_stopping_tap(self.blocks) as tap:
            self._forward(guide, seen)
        return self._on_grid_of(view, images, guide, tap, seen)

    @torch.no_grad()
    def clean_logits(self, view: BackboneView, images: Tensor) -> Tensor:
        """The logits alone."""
        guide, seen = self._guide(view, images)
        with guide.evaluating():
            return self._forward(guide, seen)

    def draw(self, view: BackboneView, images: Tensor, generator: torch.Generator) -> Tensor:
        """Uniform random scores."""
        rows, columns = view.grid_size(images.shape[-2:])
        scores = torch.rand(len(images), rows * columns, generator=generator)
        return scores.to(images.device, non_blocking=True)

    def _guide(self, view: BackboneView, images: Tensor) -> tuple[BackboneView, Tensor]:
        """Who looks, and at what: the model, or the provider at images normalised and typed as it wants them."""
        if self.provider is None:
            return view, images
        model = self.provider.model.to(images.device)
        dtype = next(model.parameters()).dtype
        return self.provider, as_seen_by(images.to(dtype), view.model, model)

    def _forward(self, guide: BackboneView, images: Tensor) -> Tensor:
        try:
            return guide(images)
        except AssertionError as error:  # timm's, for another image size
            whose = "model" if self.provider is None else "provider"
            raise ValueError(
                f"the {whose} {guide.name} does not take these images: {str(error).rstrip('.')}"
            ) from error

    def _on_grid_of(
        self, view: BackboneView, images: Tensor, guide: BackboneView, tap: AttentionTap, seen: Tensor
    ) -> Tensor:
        """What the guide's attention is on the final grid of the model under training, `[B, N]`."""
        maps = fold_tokens(self._read(guide, tap, seen), guide.grid_size(seen.shape[-2:]))
        return share_out(maps, view.grid_size(images.shape[-2:])).flatten(1)

    def _read(self, view: BackboneView, tap: AttentionTap, images: Tensor) -> Tensor:
        size = images.shape[-2:]
        if self.attention == "class-rollout":
            return tap.class_rollout()
        if self.attention == "image-rollout":
            calls = range(view.num_attention_calls)
            return mean_over_blocks([view.image_attention(tap, block, size) for block in calls])
        read = view.class_attention if self.attention == "class" else view.image_attention
        return read(tap, self.block, size)
