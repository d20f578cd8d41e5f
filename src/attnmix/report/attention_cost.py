"""Time and memory of reading attention against the number of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from attnmix.report.style import FAINT, as_written, calm, method_styles, new_figure, say

MIB = 2**20


def attention_cost(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Two panels with logarithmic axes: milliseconds and peak MiB, a line per quantity, guides for N and N^2.

    Args:
        rows: with `tokens`, `quantity`, `seconds` and `peak_bytes`, of which the last two may be None.
    """
    figure = new_figure(9.0, 4.3)
    left, right = figure.subplots(1, 2)
    legend = {}
    styles = method_styles(list(dict.fromkeys(row["quantity"] for row in rows)))
    tokens = sorted({row["tokens"] for row in rows})
    for axes, field, unit, title in (
        (left, "seconds", 1e-3, "time (ms)"),
        (right, "peak_bytes", MIB, "peak memory (MiB)"),
    ):
        calm(axes)
        lines = measured_lines(rows, field, unit=unit)
        for place, (quantity, (across, up)) in enumerate(lines.items()):
            style, below = styles[quantity], len(lines) - 1 - place  # thicker below: what coincides stays visible
            (line,) = axes.plot(
                across,
                up,
                color=style.color,
                marker=style.marker,
                linestyle=style.line,
                linewidth=1.3 + 0.4 * below,
                markersize=5 + 0.8 * below,
                label=quantity,
            )
            legend[quantity] = line
        axes.set_xlabel("image tokens N")
        axes.set_title(title, loc="left", fontsize=11)
        if not lines:
            say(axes, "nothing was measured")
            continue
        axes.set_xscale("log")
        axes.set_yscale("log")
        _guides(axes, tokens, [value for _, up in lines.values() for value in up])
        axes.xaxis.set_major_locator(FixedLocator(tokens))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.yaxis.set_major_locator(LogLocator(numticks=8))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if legend:
        figure.legend(handles=list(legend.values()), loc="outside lower center", ncols=3, frameon=False)
    return as_written(figure)


def measured_lines(
    rows: Sequence[Mapping[str, Any]], field: str, *, unit: float
) -> dict[str, tuple[list[float], list[float]]]:
    """For each quantity its numbers of tokens and its values of `field` in `unit`, rising in tokens.

    Values that are missing or nothing have no place on a logarithmic axis and are left out.
    """
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for row in sorted(rows, key=lambda row: row["tokens"]):
        if row.get(field):
            across, up = lines.setdefault(row["quantity"], ([], []))
            across.append(row["tokens"])
            up.append(row[field] / unit)
    return {row["quantity"]: lines[row["quantity"]] for row in rows if row["quantity"] in lines}


def _guides(axes: Axes, tokens: Sequence[int], values: Sequence[float]) -> None:
    """Two thin lines that rise as N and as N^2, under all that was measured, and their names at the end."""
    if len(tokens) < 2:
        return
    ends = np.array([tokens[0], tokens[-1]], dtype=float)
    low, high = axes.get_ylim()
    foot = min(values) / 3
    for power, name in ((1, "N"), (2, "N²")):
        rise = foot * (ends / ends[0]) ** power
        axes.plot(ends, rise, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
        top = min(rise[1], high)  # where the guide leaves the panel
        along = ends[0] * (top / foot) ** (1 / power)
        axes.annotate(
            name, (along, top), xytext=(7, 2), textcoords="offset points", fontsize=9, color=FAINT, va="top"
        )
    axes.set_ylim(min(low, foot), high)
