"""The table of `attnmix bench attention`, as it is read."""

import math
from collections.abc import Sequence

from attnmix.benchmark.attention import AttentionCost, growth

INTERVAL = "95 % interval"  # for the file: a terminal is narrow
HEAD = ("tokens", "quantity", "ms", "× fused", INTERVAL, "MiB", "time ∝", "memory ∝")
NONE = "–"
GIB, MIB = 2**30, 2**20


def attention_table(costs: Sequence[AttentionCost]) -> list[list[str]]:
    """The rows under `HEAD`; growth is from the quantity's last number of tokens."""
    last: dict[str, AttentionCost] = {}
    body = []
    for cost in costs:
        before = last.get(cost.quantity)
        last[cost.quantity] = cost
        grows = [NONE, NONE]
        if before is not None:
            tokens = (before.tokens, cost.tokens)
            grows = [
                _power(growth(before.seconds, cost.seconds, tokens=tokens)),
                _power(growth(before.peak_bytes, cost.peak_bytes, tokens=tokens)),
            ]
        body.append(
            [
                str(cost.tokens),
                cost.quantity,
                _digits(cost.seconds, 1e-3),
                _digits(cost.ratio),
                NONE if cost.low is None else f"{_digits(cost.low)}–{_digits(cost.high)}",
                _digits(cost.peak_bytes, MIB),
                *grows,
            ]
        )
    return body


def attention_notes(costs: Sequence[AttentionCost]) -> list[str]:
    """What a reader of the table must know: rounds, what memory means, what was left out and why."""
    rounds = {cost.tokens: cost.rounds for cost in costs if cost.rounds}
    counts = ", ".join(f"{number} at {tokens}" for tokens, number in rounds.items())
    notes = [
        f"Times are medians over rounds ({counts} tokens), × fused their ratio to the fused attention's forward. "
        "MiB is the most held at one time beyond queries, keys and values.",
        "From softmax(QK^T) whole all three are read. Image attention and label propagation go "
        "through it in chunks of queries: up to one chunk they hold all of it, beyond it their memory grows as N.",
    ]
    for cost in costs:
        if cost.needed_bytes is not None:
            needs = f"{cost.quantity} needs {_digits(cost.needed_bytes / GIB)} GiB at {cost.tokens} tokens"
            notes.append(f"{needs} and was left out: raise --max_gib to measure it.")
    return notes


def without_interval(head: Sequence[str], body: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Head and body less the interval's column, which 80 columns of a terminal have no room for."""
    place = head.index(INTERVAL)
    narrow = [[*row[:place], *row[place + 1 :]] for row in (head, *body)]
    return narrow[0], narrow[1:]


def _power(exponent: float | None) -> str:
    return NONE if exponent is None else f"N^{round(exponent, 1) + 0.0:.1f}"  # no -0.0


def _digits(value: float | None, unit: float = 1.0) -> str:
    """`value` in `unit` with three digits that count, but never more than three behind the point."""
    if value is None:
        return NONE
    value /= unit
    places = 3 if value <= 0 else 2 - math.floor(math.log10(value))
    return f"{value:.{min(max(places, 0), 3)}f}"
