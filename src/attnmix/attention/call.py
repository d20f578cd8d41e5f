"""One attention call, and its softmax rows, worked out only when asked for and only where asked for."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available


class FusedCall(NamedTuple):
    """The arguments of one `scaled_dot_product_attention`, detached, less those that do not change P."""

    query: Tensor  # [B, H, M_query, D]
    key: Tensor  # [B, H, M_key, D], or fewer heads that divide H
    mask: Tensor | None = None  # broadcastable to [B, H, M_query, M_key]; bool: True = attend; float: added
    is_causal: bool = False
    scale: float | None = None  # None: 1 / sqrt(D)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, M_query, M_key."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def device(self) -> torch.device:
        """Where the call ran."""
        return self.query.device


class SoftmaxCall(NamedTuple):
    """The result of one softmax in a model that spells its attention out, detached."""

    softmax: Tensor  # [B, H, M_query, M_key]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, M_query, M_key."""
        batch, heads, queries, keys = self.softmax.shape
        return batch, heads, queries, keys

    @property
    def device(self) -> torch.device:
        """Where the call ran."""
        return self.softmax.device


AttentionCall = FusedCall | SoftmaxCall


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Compute beside the model: no gradient, no autocast, and unseen by any tap that is open."""
    # devices without autocast (meta) have none to switch off
    has_autocast = is_autocast_available(device.type)
    plain: AbstractContextManager = torch.autocast(device.type, enabled=False) if has_autocast else nullcontext()
    with torch.no_grad(), plain, torch._C.DisableTorchFunction():
        yield


def in_float32(call: AttentionCall) -> AttentionCall:
    """The call with float32 query and key, and grouped key heads repeated; no copy where both hold."""
    if isinstance(call, SoftmaxCall):
        return call  # row by row instead, it is the large one
    query, key = call.query.float(), call.key.float()
    if key.shape[1] != query.shape[1]:  # grouped-query attention: one key head serves several queries'
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    return call._replace(query=query, key=key)


def softmax_rows(call: AttentionCall, start: int, stop: int) -> Tensor:
    """Softmax attention after bias and before dropout of queries `start` to `stop`, [B, H, rows, M_key].

    Expects `in_float32`. A query that may attend to nothing has a row of zeros, as in PyTorch.
    """
    if isinstance(call, SoftmaxCall):
        return call.softmax[:, :, start:stop].float()
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    logits = (call.query[:, :, start:stop] * scale) @ call.key.transpose(-2, -1)
    if call.mask is None and not call.is_causal:
        return logits.softmax(dim=-1)

    if call.is_causal:
        queries = torch.arange(start, stop, device=logits.device)[:, None]
        keys = torch.arange(logits.shape[-1], device=logits.device)
        logits = logits.masked_fill(keys > queries, float("-inf"))
    if call.mask is not None:
        mask = call.mask
        if mask.dim() > 1 and mask.shape[-2] != 1:
            mask = mask[..., start:stop, :]
        logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask.float()
    nothing_allowed = (logits == float("-inf")).all(dim=-1, keepdim=True)
    return logits.softmax(dim=-1).masked_fill(nothing_allowed, 0.0)


def rows_at_once(heads: int, keys: int, device: torch.device) -> int:
    """Softmax rows of one sample, `[H, M_key]` each, to be held at once: a core's cache full, or a GPU's work.

    Never so few that a matrix product degenerates; with long rows the memory is linear in their length.
    """
    if torch.compiler.is_compiling():  # would unroll the chunks into its graph, more of them for every sample
        return 2**62
    elements = 2**17 if device.type == "cpu" else 2**24
    return max(32, elements // (heads * keys))


def chunks(call: AttentionCall) -> Iterator[tuple[slice, slice, Tensor]]:
    """(samples, queries, softmax rows `[b, H, rows, M_key]`) over a whole call, `rows_at_once`."""
    batch, heads, queries, keys = call.shape
    rows = rows_at_once(heads, keys, call.device)
    together = max(1, rows // queries)
    for first in range(0, batch, together):
        samples = slice(first, min(first + together, batch))
        part = in_float32(_of_samples(call, samples))
        for start in range(0, queries, rows):
            stop = min(start + rows, queries)
            yield samples, slice(start, stop), softmax_rows(part, start, stop)


def _of_samples(call: AttentionCall, samples: slice) -> AttentionCall:
    if isinstance(call, SoftmaxCall):
        return SoftmaxCall(call.softmax[samples])
    mask = call.mask
    if mask is not None and mask.dim() == 4 and len(mask) > 1:
        mask = mask[samples]
    return call._replace(query=call.query[samples], key=call.key[samples], mask=mask)
