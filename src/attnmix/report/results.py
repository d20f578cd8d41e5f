"""Reading the plain results dict, of which any part may be missing, None or not finite."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Results = Mapping[str, Any]

MISSING = "–"


def number(value: object) -> float | None:
    """`value` as a finite float; None where it is missing, not a number, NaN or infinite."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def show(value: object, decimals: int = 1, *, unit: str = "") -> str:
    """`value` with fixed decimals and its unit, or a dash."""
    found = number(value)
    return MISSING if found is None else f"{found:.{decimals}f}{unit}".replace("-", "−")


def show_share(value: object) -> str:
    """A share 0..1 as a percentage ("50 %"), or a dash."""
    found = number(value)
    return MISSING if found is None else f"{100 * found:.0f} %"


def show_spread(value: object, spread: object, decimals: int = 1) -> str:
    """`value ± spread`, the value alone where there is no spread, or a dash."""
    if number(value) is None or number(spread) is None:
        return show(value, decimals)
    return f"{show(value, decimals)} ± {show(spread, decimals)}"


def show_range(low: object, high: object, decimals: int = 1) -> str:
    """`low–high`, or a dash where either end is missing."""
    if number(low) is None or number(high) is None:
        return MISSING
    return f"{show(low, decimals)}–{show(high, decimals)}"


def pair(value: object) -> tuple[float, float] | None:
    """A `[low, high]` list as two finite floats, or None."""
    if not isinstance(value, Sequence) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)


def entries(results: Results, key: str) -> list[Any]:
    """The list under `key`; empty where it is missing or None."""
    return list(results.get(key) or [])


def method_labels(results: Results) -> list[str]:
    """Labels of the methods in their given order, then any that only the runs or the summary name."""
    named = [str(label) for label in entries(results, "methods")]
    seen = [str(row.get("label")) for key in ("runs", "summary") for row in entries(results, key)]
    return list(dict.fromkeys(named + seen))


def runs_of(results: Results, label: str) -> list[Mapping[str, Any]]:
    """The runs of one method, one for each seed."""
    return [run for run in entries(results, "runs") if str(run.get("label")) == label]


def summary_of(results: Results, label: str) -> Mapping[str, Any]:
    """The summary row of one method; empty where it has none yet."""
    for row in entries(results, "summary"):
        if str(row.get("label")) == label:
            return row
    return {}
