"""Sees attention calls go by, in order, and keeps the wanted ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnmix.attention.call import AttentionCall, FusedCall, SoftmaxCall

_SOFTMAX = frozenset({torch.softmax, F.softmax, Tensor.softmax, torch.special.softmax})


class SeenEnough(Exception):
    """Ends a forward whose rest nobody wants, says the recorder."""

    def __init__(self, recorder: AttentionRecorder) -> None:
        self.recorder = recorder


class AttentionRecorder(TorchFunctionMode):
    """Function mode that keeps the query and key of attention calls.

    Fused attention is `F.scaled_dot_product_attention`; elsewhere, attention is the softmax over the last
    dimension. Both count where their tensors are 4-D, and are passed on as they are. `blocks` None keeps
    every call; negative ones count from the last call, so that as many calls as the most negative asks for
    are held at any time. After call number `last`, if given, `SeenEnough` is raised.
    """

    def __init__(self, blocks: Sequence[int] | None, last: int | None = None) -> None:
        super().__init__()
        self.blocks = blocks
        self.last = last
        self.window = max((-block for block in blocks or () if block < 0), default=0)
        self.shapes: list[tuple[int, int]] = []  # (M_query, M_key) of every call
        self.calls: dict[int, AttentionCall] = {}  # the calls kept, by their number

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if is_fused(func, args, kwargs):
            self._record(fused_call(*args, **kwargs))
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if is_softmax(func, args, kwargs, result):
            self._record(SoftmaxCall(result.detach()))
        return result

    def _record(self, call: AttentionCall) -> None:
        number = len(self.shapes)
        self.shapes.append(call.shape[2:])
        if self.blocks is None or number in self.blocks or self.window:
            self.calls[number] = call
        leaving = number - self.window
        if self.window and leaving in self.calls and self.blocks is not None and leaving not in self.blocks:
            del self.calls[leaving]
        if number == self.last:
            raise SeenEnough(self)

    def drop_unwanted(self) -> None:
        """Once the last call is known: keep only what `blocks` names."""
        if self.blocks is not None:
            count = len(self.shapes)
            wanted = {block + count if block < 0 else block for block in self.blocks}
            self.calls = {number: call for number, call in self.calls.items() if number in wanted}


def is_fused(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this is fused attention on 4-D tensors."""
    return func is F.scaled_dot_product_attention and (args[0] if args else kwargs["query"]).dim() == 4


def is_softmax(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether this was a softmax over the last of four dimensions, as in attention that is spelled out."""
    if func not in _SOFTMAX or result.dim() != 4:
        return False
    return kwargs.get("dim", args[1] if len(args) > 1 else None) in (-1, 3)


def fused_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> FusedCall:
    """The arguments of `F.scaled_dot_product_attention`, less those that do not change P."""
    mask = None if attn_mask is None else attn_mask.detach()
    return FusedCall(query.detach(), key.detach(), mask, is_causal, scale)
