"""How tokens travel through a model, and with them whatever value each of them is given.

A model's flow is a tuple of steps in the order in which they run. It starts at the image tokens of the first
grid, `[B, N]`; `Join` puts prefix tokens (class, distillation, registers) in front of them, `Merge` brings them to
a coarser grid, and every attention step is one call that `AttentionTap` sees: attention step k is tap block k.
Steps know shapes only and hold no tensor. Values are float32 and never depend on a gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.attention import quantities
from attnmix.attention.call import AttentionCall, aside

Grid = tuple[int, int]
Attend = Callable[[Tensor], Tensor]

MIXES_CHANNELS = "mixes channels, not tokens: of XCiT's blocks, only the class-attention blocks at its end tell"


@dataclass(frozen=True)
class Join:
    """`prefix` tokens that come from no place of the image are put in front of the others."""

    prefix: int

    def apply(self, values: Tensor, joining: Tensor) -> Tensor:
        """`[B, M]` and the new tokens' value `[B]` -> `[B, prefix + M]`."""
        return torch.cat((joining.to(values)[:, None].expand(-1, self.prefix), values), dim=1)


@dataclass(frozen=True)
class Merge:
    """Image tokens merge between stages: each new token is the mean of those that its convolution reads.

    Padded places count for nothing; tokens that a convolution without padding does not reach are dropped.

    Attributes:
        grid: before merging.
        kernel, stride, padding: of the convolution; padding is on both sides.
        completes: whether a last incomplete cell is padded at the bottom and right (Swin) or dropped.
    """

    grid: Grid
    kernel: Grid
    stride: Grid
    padding: Grid = (0, 0)
    completes: bool = False

    @property
    def merged_grid(self) -> Grid:
        """The grid after merging."""
        rounded = math.ceil if self.completes else math.floor
        rows, columns = (
            rounded((side + 2 * padding - kernel) / stride) + 1
            for side, kernel, stride, padding in zip(
                self.grid, self.kernel, self.stride, self.padding, strict=True
            )
        )
        return rows, columns

    def apply(self, values: Tensor, joining: Tensor) -> Tensor:
        """`[B, N]` -> `[B, N']`."""
        image = values.unflatten(1, self.grid)[:, None]
        return F.avg_pool2d(
            image, self.kernel, self.stride, self.padding, self.completes, count_include_pad=False
        ).flatten(1)


class AttentionStep(ABC):
    """One attention call over image tokens on `grid`, with prefix tokens in front of them.

    Attributes:
        grid: of the image tokens among the queries.
        prefix: how many prefix tokens are among the keys.
        has_class_row: whether the call's first row says what the class token, or a pool, attends to.
        one_query: whether a single query attends: class attention and attention pooling.
    """

    grid: Grid
    prefix: int = 0
    has_class_row: bool = False
    one_query: bool = False

    @property
    def query_prefix(self) -> int:
        """How many prefix tokens are among the queries, and not to be counted as image."""
        return 0 if self.one_query else self.prefix

    @property
    def key_grid(self) -> Grid:
        """The grid of the image tokens among the keys."""
        return self.grid

    @property
    def windows(self) -> int:
        """How many windows of an image stand beside each other in the call's batch."""
        return 1

    @property
    def shape(self) -> tuple[int, int]:
        """How many queries and keys the call has."""
        keys = self.prefix + math.prod(self.key_grid)
        return 1 if self.one_query else self.query_prefix + math.prod(self.grid), keys

    @abstractmethod
    def carry(self, values: Tensor, attend: Attend, residual: bool = True) -> Tensor:
        """One value per token `[B, M]` after this attention.

        Args:
            values: before it, prefix tokens first.
            attend: the call's head-mean attention times values of the keys, `[B', M_key]` -> `[B', M_query]`,
                where B' counts windows too, in the model's order.
            residual: average with the token's own value, as the residual connection does, or take what it
                attends to alone.
        """

    def fold(self, scores: Tensor) -> Tensor:
        """Scores of the image keys `[B', N_key]` as a map on the key grid, `[B, gh, gw]`."""
        return scores.unflatten(1, self.key_grid)

    def class_attention(self, call: AttentionCall) -> Tensor:
        """The class row on the image keys, rows sum to 1, `[B, N_key]` (TransMix eq. 5)."""
        return quantities.class_attention(call, self.prefix)

    def image_attention(self, call: AttentionCall) -> Tensor:
        """Mean over heads and image queries, not renormalised, `[B', N_key]` (SMMix eq. 6)."""
        return quantities.image_attention(call, self.query_prefix, self.prefix)


def _mean(own: Tensor, attended: Tensor, residual: bool) -> Tensor:
    return (own + attended) / 2 if residual else attended


@dataclass(frozen=True)
class SequenceAttention(AttentionStep):
    """All tokens attend to all tokens.

    Attributes:
        has_class_row: whether the first prefix token is a class token.
        skips: whether the model adds the input to the output; if not (PRR pooling), no value is averaged.
    """

    grid: Grid
    prefix: int = 0
    has_class_row: bool = False
    skips: bool = True

    def carry(self, values: Tensor, attend: Attend, residual: bool = True) -> Tensor:
        """See `AttentionStep`."""
        return _mean(values, attend(values), residual and self.skips)


@dataclass(frozen=True)
class ReducedAttention(AttentionStep):
    """All image tokens attend to few keys, each of them made of a cell of image tokens (PVT).

    A key's value is the mean over its cell.

    Attributes:
        reduced_grid: of the keys.
        cell: sides of a cell, in tokens; tokens at the border that fill none are dropped, as the convolution
            does. None: cells as adaptive average pooling makes them (linear PVT v2).
    """

    grid: Grid
    reduced_grid: Grid
    cell: Grid | None = None

    @property
    def key_grid(self) -> Grid:
        """The grid of cells."""
        return self.reduced_grid

    def carry(self, values: Tensor, attend: Attend, residual: bool = True) -> Tensor:
        """See `AttentionStep`."""
        image = values.unflatten(1, self.grid)[:, None]
        if self.cell is None:
            keys = F.adaptive_avg_pool2d(image, self.reduced_grid)
        else:
            keys = F.avg_pool2d(image, self.cell)
        return _mean(values, attend(keys.flatten(1)), residual)


@dataclass(frozen=True)
class WindowAttention(AttentionStep):
    """Tokens attend inside windows, cyclically shifted (Swin).

    Places that pad the grid to whole windows hold no image: attention to them is left out, and the rest of the
    row scaled up to sum to 1.

    Attributes:
        window: rows and columns.
        shift: by which the grid is rolled up and left.
        pads_first: whether padding comes before the roll (transformers) or after (timm).
    """

    grid: Grid
    window: Grid
    shift: Grid = (0, 0)
    pads_first: bool = False

    @property
    def windows(self) -> int:
        """Windows per image."""
        return math.prod(math.ceil(side / window) for side, window in zip(self.grid, self.window, strict=True))

    @property
    def shape(self) -> tuple[int, int]:
        """A window's."""
        area = math.prod(self.window)
        return area, area

    @property
    def pads(self) -> bool:
        """Whether there are padded places."""
        return any(side % window for side, window in zip(self.grid, self.window, strict=True))

    def carry(self, values: Tensor, attend: Attend, residual: bool = True) -> Tensor:
        """See `AttentionStep`."""
        order = self._order(values.device)
        real = order >= 0
        own = (values[:, order.clamp(min=0)] * real).flatten(0, 1)
        attended = attend(own)
        if self.pads:
            share = attend(real.to(values.dtype).repeat(len(values), 1))
            attended = torch.where(share > 0, attended / share, own)
        return _mean(values, self._back(attended), residual)

    def fold(self, scores: Tensor) -> Tensor:
        """Mean over a window's queries -> mean over all queries of the image, in their places."""
        _, area = self.shape
        return self._back(scores).unflatten(1, self.grid) * (area / math.prod(self.grid))

    def image_attention(self, call: AttentionCall) -> Tensor:
        """Sum over the queries that hold image, divided by the window's area."""
        if not self.pads:
            return super().image_attention(call)
        real = (self._order(call.device) >= 0).float().repeat(call.shape[0] // self.windows, 1)
        share = quantities.right_product(call, real)
        weights = torch.where(share > 0, real / share, 0.0) / self.shape[0]
        return quantities.left_product(weights, call)

    def _order(self, device: torch.device) -> Tensor:
        """Which token stands where in the windows, `[windows, area]`; -1 in padded places."""
        (rows, columns), (height, width) = self.grid, self.window
        tokens = torch.arange(rows * columns, device=device).view(rows, columns)
        up, left = self.shift
        if not self.pads_first:
            tokens = tokens.roll((-up, -left), (0, 1))
        tokens = F.pad(tokens, (0, -columns % width, 0, -rows % height), value=-1)
        if self.pads_first:
            tokens = tokens.roll((-up, -left), (0, 1))
        tokens = tokens.unflatten(1, (-1, width)).unflatten(0, (-1, height)).transpose(1, 2)
        return tokens.reshape(-1, height * width)

    def _back(self, scores: Tensor) -> Tensor:
        """From windows `[B', area]` to tokens `[B, N]`."""
        order = self._order(scores.device).flatten()
        places = order.argsort()[len(order) - math.prod(self.grid) :]
        return scores.reshape(-1, len(order))[:, places]


@dataclass(frozen=True)
class ClassAttention(AttentionStep):
    """The class token alone attends, to itself and the image tokens, which stay as they are (CaiT)."""

    grid: Grid
    prefix = 1
    has_class_row = True
    one_query = True

    def carry(self, values: Tensor, attend: Attend, residual: bool = True) -> Tensor:
        """See `AttentionStep`."""
        return torch.cat((_mean(values[:, :1], attend(values), residual), values[:, 1:]), dim=1)


@dataclass(frozen=True)
class PoolAttention(AttentionStep):
    """A learned query, which is no token, attends to the tokens; what it finds is all that is left (SigLIP).

    Attributes:
        prefix: prefix tokens that it attends to.
        drops: prefix tokens that it is not shown.
    """

    grid: Grid
    prefix: int = 0
    drops: int = 0
    has_class_row = True
    one_query = True

    def carry(self, values: Tensor, attend: Attend, residual: bool = True) -> Tensor:
        """`[B, M]` -> `[B, 1]`; the query has no value of its own to average with."""
        return attend(values[:, self.drops :])


@dataclass(frozen=True)
class ChannelAttention(AttentionStep):
    """Channels attend to channels, tokens to none (XCiT's cross-covariance attention).

    Attributes:
        channels: of one head.
    """

    grid: Grid
    channels: int

    @property
    def shape(self) -> tuple[int, int]:
        """One head's channels."""
        return self.channels, self.channels

    def carry(self, values: Tensor, attend: Attend, residual: bool = True) -> Tensor:
        """Raise ValueError: no token looks at another."""
        raise ValueError(f"this attention {MIXES_CHANNELS}")

    def fold(self, scores: Tensor) -> Tensor:
        """Raise ValueError: scores are not of tokens."""
        raise ValueError(f"this attention {MIXES_CHANNELS}")


def share_out(maps: Tensor, grid: Grid) -> Tensor:
    """Maps `[B, gh, gw]` on another grid over the same image: each place's score is divided by area, sums stay."""
    with aside(maps.device):
        rows, columns = (_shares(old, new, maps.device) for old, new in zip(maps.shape[1:], grid, strict=True))
        return rows @ maps @ columns.T


def _shares(old: int, new: int, device: torch.device) -> Tensor:
    """Which share of each of `old` intervals lies in each of `new` ones over the same length, `[new, old]`."""
    first, second = torch.arange(old, device=device) * new, torch.arange(new, device=device)[:, None] * old
    return (torch.minimum(first + new, second + old) - torch.maximum(first, second)).clamp(min=0) / new


Step = Join | Merge | AttentionStep
Flow = tuple[Step, ...]


def attention_steps(flow: Sequence[Step]) -> list[AttentionStep]:
    """The attention calls among the steps; number k is the tap's block k."""
    return [step for step in flow if isinstance(step, AttentionStep)]
