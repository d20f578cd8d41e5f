"""A moving average of the model under training, to look and to judge with while it trains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import is_autocast_available
from torch.distributed.tensor import DTensor

from attnmix.attention.flow import attention_steps
from attnmix.backbone import BackboneView

HALF = (torch.bfloat16, torch.float16)
SAMPLE = 64  # numbers of each parameter, by which a changed model is known


class _Reached(Exception):
    """Ends a forward at the block whose input is wanted."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens


class MovingAverage(nn.Module):
    """The weights of a model, averaged over its steps; frozen, always in evaluation mode.

    The averaged model is no submodule, so that it is neither trained nor counted as this module's; it moves with
    it, and is in its state. A half-precision model's is kept in float32, where small steps do not round to none,
    and runs in that precision. Processes that train together have the same average, as it starts as the model is
    at the first step. The host waits for nothing: whether the weights changed is known to the device alone (their
    version counters would not tell, as fused optimizers leave them as they are).

    Args:
        model: copied; not compiled.
        momentum: share of the old average that stays in every step, in [0, 1].
    """

    def __init__(self, model: nn.Module, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.started = False
        self.seen: Tensor | None = None  # of the model that was followed last
        self.view = BackboneView(_in_full(copy.deepcopy(model).requires_grad_(False).eval()))

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Move towards the model, to it the first time; buffers are copied.

        Where its weights are those of the last call, as between batches whose gradients are gathered or after an
        update that was left out, the average stays to the bit, also after a resume.
        """
        ours = list(self.view.model.parameters())
        theirs = [_whole(new).to(old.dtype) for old, new in zip(ours, model.parameters(), strict=True)]
        now = torch.cat([new.reshape(-1)[:SAMPLE] for new in theirs])
        if self.started:
            changed = now.new_ones((), dtype=torch.bool) if self.seen is None else now.ne(self.seen).any()
            way = torch._foreach_sub(theirs, ours)
            torch._foreach_mul_(way, changed.to(now.dtype) * (1 - self.momentum))
            torch._foreach_add_(ours, way)
        else:
            torch._foreach_copy_(ours, theirs)
        self.seen = now
        for old, new in zip(self.view.model.buffers(), model.buffers(), strict=True):
            old.copy_(new, non_blocking=True)
        self.started = True

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, C]` of images `[B, C, H, W]`, whose gradient goes through."""
        with self._precision(images):
            return self.view(images.to(self._dtype))

    @torch.no_grad()
    def features(self, images: Tensor, block: int) -> tuple[Tensor, tuple[int, int]]:
        """Image tokens that go into a block `[B, N, D]`, and their grid; the forward ends there."""

        def stop(_: nn.Module, args: tuple[Any, ...]) -> None:
            raise _Reached(args[0])

        handle = self.view.blocks[block].register_forward_pre_hook(stop)
        try:
            self.forward(images)
            raise RuntimeError(f"block {block} of {self.view.name} did not run")
        except _Reached as reached:
            tokens = reached.tokens
        finally:
            handle.remove()
        step = attention_steps(self.view.flow(images.shape[-2:]))[block]
        return tokens.flatten(1, -2)[:, step.prefix :], step.grid

    def get_extra_state(self) -> dict[str, Any]:
        """What has been averaged."""
        return {"started": self.started, "seen": self.seen, "model": self.view.model.state_dict()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.view.model.load_state_dict(state["model"])
        weights = list(self.view.model.parameters())
        seen, size = state.get("seen"), sum(min(SAMPLE, weight.numel()) for weight in weights)
        if seen is not None and (not isinstance(seen, Tensor) or seen.shape != (size,)):
            raise ValueError(f"a moving average's state is damaged: what it saw are not {size} numbers")
        self.started, self.seen = state["started"], None if seen is None else seen.to(weights[0])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MovingAverage:
        super()._apply(fn, recurse)
        _in_full(self.view.model._apply(fn, recurse))
        self.seen = None if self.seen is None else fn(self.seen)
        return self

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.view.model.parameters()).dtype
        return dtype

    def _precision(self, images: Tensor) -> AbstractContextManager[Any]:
        half = images.dtype in HALF and is_autocast_available(images.device.type)
        return torch.autocast(images.device.type, images.dtype) if half else nullcontext()


def _whole(weight: Tensor) -> Tensor:
    """A weight of which FSDP2 left this process a part."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def _in_full(model: nn.Module) -> nn.Module:
    """The model, its half-precision weights and buffers in float32."""
    return model._apply(lambda tensor: tensor.float() if tensor.dtype in HALF else tensor)
