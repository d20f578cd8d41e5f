"""Whose attention guides the mixing, and which quantity of it: what the papers ablate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnmix.attention import AttentionTap
from attnmix.backbone import BackboneView
from attnmix.mixing import fold_tokens
from attnmix.mixing.draws import check_choice

ATTENTIONS = ("class", "image", "class-rollout", "image-rollout", "random")
Result = TypeVar("Result")


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
        ValueError: unknown attention, options without a provider, a provider that cannot be made.
    """

    def __init__(
        self,
        attention: str,
        block: int,
        provider: str | nn.Module | None = None,
        provider_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_choice("attention", attention, ATTENTIONS)
        if provider_options and not isinstance(provider, str):
            raise ValueError(f"provider_options {dict(provider_options)} need a provider given by name")
        if provider is not None and attention == "random":
            raise ValueError('attention="random" looks at no model: leave provider out')
        self.attention = attention
        self.block = block
        self.blocks = None if attention.endswith("rollout") else [block]
        # no submodule of the method: it is neither trained nor saved
        self.provider = None if provider is None else BackboneView(_frozen(provider, provider_options or {}))

    def bind(self, view: BackboneView, *, reader: str) -> None:
        """Check that the attention can be read from this model, or from the provider.

        Args:
            view: the model under training.
            reader: the method's name, for messages.

        Raises:
            ValueError: no class row, no such block, tokens that change between blocks under a rollout.
        """
        if self.attention == "random":
            return
        view = self.provider or view
        view.require_all_tokens()
        if self.attention.startswith("class") and not view.has_class_row:
            other = self.attention.replace("class", "image")
            raise ValueError(
                f"{view.name} classifies by no class token whose attention {reader} could read; "
                f'use attention="{other}", or a model with a class token'
            )
        view.check_guide(self.blocks, self.attention)

    def during(
        self, view: BackboneView, images: Tensor, forward: Callable[[Tensor], Result], generator: torch.Generator
    ) -> tuple[Result, Tensor]:
        """`forward(images)`, and the attention on these images: of that very forward, or the provider's."""
        if self.attention == "random":
            return forward(images), self.draw(view, images, generator)
        if self.provider is not None:
            _, attention = self.clean(view, images)
            return forward(images), attention
        with view.open_tap(self.blocks) as tap:
            result = forward(images)
        return result, self._read(view, tap, images)

    @torch.no_grad()
    def clean(self, view: BackboneView, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[B, C]` and attention of a forward as at inference: the model's, or the provider's."""
        guide = view
        if self.provider is not None:
            guide = self.provider
            guide.model.to(images.device)
            own = images
            images = _as_the_provider_sees(images, view.model, guide.model)
            images = images.to(next(guide.model.parameters()).dtype)
        with guide.evaluating(), guide.open_tap(self.blocks) as tap:
            logits = guide(images)
        attention = self._read(guide, tap, images)
        if guide is not view:
            ours, theirs = view.grid_size(own.shape[-2:]), guide.grid_size(images.shape[-2:])
            if ours != theirs:
                attention = F.interpolate(fold_tokens(attention, theirs)[:, None], size=ours, mode="area").flatten(
                    1
                )
        return logits, attention

    def draw(self, view: BackboneView, images: Tensor, generator: torch.Generator) -> Tensor:
        """Uniform random scores."""
        rows, columns = view.grid_size(images.shape[-2:])
        scores = torch.rand(len(images), rows * columns, generator=generator)
        return scores.to(images.device, non_blocking=True)

    def _read(self, view: BackboneView, tap: AttentionTap, images: Tensor) -> Tensor:
        size = images.shape[-2:]
        if self.attention == "class-rollout":
            return tap.class_rollout()
        if self.attention == "image-rollout":
            calls = range(view.num_attention_calls)
            return torch.stack([view.image_attention(tap, block, size) for block in calls]).mean(dim=0)
        read = view.class_attention if self.attention == "class" else view.image_attention
        return read(tap, self.block, size)


def _frozen(provider: str | nn.Module, options: Mapping[str, Any]) -> nn.Module:
    if isinstance(provider, nn.Module):
        return provider
    from pathlib import Path

    name = f"local-dir:{provider}" if (Path(provider) / "config.json").is_file() else provider
    try:
        model = timm.create_model(name, **{"pretrained": True, **options})
    except Exception as error:  # unknown name, no network, weights that do not fit: all are the user's to mend
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"provider {provider!r} cannot be made with options {dict(options)}: {reason}") from error
    return model.requires_grad_(False)


def _as_the_provider_sees(images: Tensor, model: nn.Module, provider: nn.Module) -> Tensor:
    """Normalised as the provider was trained, where both models say how they were."""
    ours, theirs = (getattr(each, "pretrained_cfg", None) or {} for each in (model, provider))
    known = all(cfg.get(key) for cfg in (ours, theirs) for key in ("mean", "std"))
    if not known or all(tuple(ours[key]) == tuple(theirs[key]) for key in ("mean", "std")):
        return images

    def channel(values: Any) -> Tensor:
        return torch.tensor(values, device=images.device, dtype=images.dtype)[:, None, None]

    pixels = images * channel(ours["std"]) + channel(ours["mean"])
    return (pixels - channel(theirs["mean"])) / channel(theirs["std"])
