"""Time and memory of reading attention from one call, beside holding softmax(QK^T) whole."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.attention.call import FusedCall
from attnmix.attention.carry import carrying_attention
from attnmix.attention.quantities import (
    class_attention,
    image_attention,
    probabilities,
    renormalise,
    right_product,
)
from attnmix.benchmark.memory import peak_allocated
from attnmix.benchmark.rounds import LEAST_ROUNDS, Ratio, measure_rounds, ratio_interval

FUSED, CLASS, IMAGE, LABELS, CARRIED, WHOLE = QUANTITIES = (
    "fused attention",
    "class attention",
    "image attention",
    "label propagation",
    "fused attention with labels",
    "softmax(QK^T) whole",
)
Action = Callable[[], object]


@dataclass(frozen=True)
class AttentionCost:
    """What one quantity costs at one number of tokens.

    Attributes:
        tokens: image tokens; a class token comes on top.
        quantity: one of `QUANTITIES`.
        seconds: the median over rounds; None, as the three after it, where it was left out.
        ratio: to the fused attention's own forward in the same rounds.
        low: lower end of the ratio's 95 % bootstrap interval over rounds.
        high: its upper end.
        peak_bytes: most bytes at one time beyond query, key and value; None where left out.
        rounds: how often it was timed.
        needed_bytes: what it would take, where it was left out.
    """

    tokens: int
    quantity: str
    seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    peak_bytes: int | None = None
    rounds: int = 0
    needed_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for a results file."""
        return asdict(self)


def measure_attention(
    tokens: Sequence[int],
    *,
    heads: int,
    width: int,
    batch_size: int = 1,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    rounds: int = 20,
    seconds: float = 10.0,
    max_bytes: float = math.inf,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[AttentionCost]:
    """Cost of each of `QUANTITIES` at each number of image tokens, from random queries and keys.

    Args:
        tokens: numbers of image tokens N; the call has N + 1, of which the first is a class token.
        heads: of the call.
        width: of each head.
        batch_size: of the call.
        device: where it runs.
        dtype: of queries, keys and values.
        rounds: how often each quantity is timed at most.
        seconds: after which no more rounds than three are made at one number of tokens.
        max_bytes: softmax(QK^T) is not held whole where that takes more.
        seed: of the draws and of the order within a round.
        progress: called with each number of tokens once it is measured.

    Raises:
        ValueError: a number of tokens below 1, or what `measure_rounds` refuses.
    """
    wrong = [count for count in tokens if count < 1]
    if wrong or not tokens:
        raise ValueError(f"tokens are {list(tokens)}, but must be one or more numbers, each 1 or more")
    costs = []
    for count in tokens:
        generator = torch.Generator().manual_seed(seed)
        shape = (batch_size, heads, count + 1, width)
        query, key, value = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(3))
        actions = attention_actions(query, key, value)
        needed = whole_bytes(batch_size, heads, count + 1)
        if needed > max_bytes:
            del actions[WHOLE]
        with torch.no_grad():
            times = timed_rounds(actions, device=device, rounds=rounds, seconds=seconds, seed=seed)
            peaks = {name: peak_allocated(action, device) for name, action in actions.items()}
        for name, taken in times.items():
            ratio: Ratio = ratio_interval(taken, times[FUSED], seed=seed)
            costs.append(
                AttentionCost(
                    count,
                    name,
                    float(np.median(taken)),
                    ratio.ratio,
                    ratio.low,
                    ratio.high,
                    peaks[name],
                    len(taken),
                )
            )
        if WHOLE not in actions:
            costs.append(AttentionCost(count, WHOLE, needed_bytes=needed))
        if progress is not None:
            progress(count)
    return costs


def attention_actions(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Action]:
    """What is measured, by name, on one call `[B, H, M, D]` whose first token is the class token."""
    call = FusedCall(query, key)
    batch, _, tokens, _ = query.shape
    labels = torch.linspace(0, 1, tokens, device=query.device).expand(batch, tokens)  # a value for each token

    def whole() -> tuple[Tensor, Tensor, Tensor]:
        attention = probabilities(call).mean(dim=1)  # [B, M, M]
        of_class, of_image = attention[:, 0, 1:], attention[:, 1:, 1:]
        return renormalise(of_class), of_image.mean(dim=1), (attention @ labels[..., None])[..., 0]

    actions: dict[str, Action] = {
        FUSED: lambda: F.scaled_dot_product_attention(query, key, value),
        CLASS: lambda: class_attention(call, 1),
        IMAGE: lambda: image_attention(call, 1, 1),
        LABELS: lambda: right_product(call, labels),
        CARRIED: lambda: carrying_attention(labels, query, key, value),
        WHOLE: whole,
    }
    if carrying_attention(labels, query, key, value) is None:  # on a GPU, or in half precision
        del actions[CARRIED]
    return actions


def whole_bytes(batch: int, heads: int, tokens: int) -> int:
    """Bytes of holding softmax(QK^T) whole: logits and softmax, both float32 `[B, H, M, M]`, at one time."""
    return 2 * 4 * batch * heads * tokens**2


def timed_rounds(
    actions: Mapping[str, Action], *, device: torch.device, rounds: int, seconds: float, seed: int = 0
) -> dict[str, np.ndarray]:
    """Seconds of each action in `rounds` rounds, or in as many as fit into `seconds`, but in three at least.

    Raises:
        ValueError: fewer than three rounds.
    """
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"rounds is {rounds}, but an interval needs {LEAST_ROUNDS} or more")
    few = LEAST_ROUNDS if rounds >= 2 * LEAST_ROUNDS else rounds  # what is left can be measured in turn
    first = measure_rounds(actions, device=device, rounds=few, warmup=1, seed=seed)
    spent = sum(taken.sum() for taken in first.values())
    affordable = few * (seconds / spent - 1) if spent > 0 else math.inf
    more = int(min(rounds - few, affordable))
    if more < LEAST_ROUNDS:
        return first
    rest = measure_rounds(actions, device=device, rounds=more, warmup=0, seed=seed + 1)
    return {name: np.concatenate((first[name], rest[name])) for name in actions}


def growth(smaller: float | None, larger: float | None, *, tokens: tuple[int, int]) -> float | None:
    """The x of N^x by which a cost grows between two numbers of tokens; None where one is missing or nothing."""
    if not smaller or not larger or tokens[0] == tokens[1]:
        return None
    return math.log(larger / smaller) / math.log(tokens[1] / tokens[0])
