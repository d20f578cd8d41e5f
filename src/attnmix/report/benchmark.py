"""A benchmark's table on the console, its files, and the chart of ratios to CutMix."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnmix.benchmark.results import right_aligned, write_results, write_whole
from attnmix.report.style import FAINT, INK, as_written, calm, darker, method_styles, new_figure, png, say, short

BAR = 0.62  # of a row's height
ROW_INCHES = 0.3
WIDE = 1000  # characters


def print_table(head: Sequence[str], body: Sequence[Sequence[str]], *, notes: Sequence[str] = ()) -> None:
    """Print a table, numbers to the right, and sentences below it."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(head, right_aligned(head, body), strict=True):
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in body:
        table.add_row(*(Text(cell) for cell in row))  # a bracket in a name is no markup
    console = Console()
    if not console.is_terminal:
        console.width = WIDE  # a file or a pipe has no edge to wrap at
    console.print(table)
    for note in notes:
        console.print(Text(note))


def write_benchmark(
    out: Path,
    stem: str,
    *,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    figure: Figure | None = None,
) -> list[Path]:
    """Write `<stem>.json` and `<stem>.md` as `write_results` does, and with a figure `<stem>.png`; their paths."""
    written = write_results(out, stem, settings=settings, rows=rows, head=head, body=body)
    return written if figure is None else [*written, write_whole(out / f"{stem}.png", png(figure))]


def ratio_chart(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """What a step costs, CutMix = 1: a bar for each method with its interval, a mark where its floor is.

    Args:
        rows: with `model`, `method`, `ratio`, `low`, `high` and `floor`, as `bench_steps` gives them; those
            without a ratio are left out. One panel for each model.
    """
    rows = [row for row in rows if row.get("ratio") is not None]
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        panels.setdefault(row["model"], []).append(row)
    if not panels:
        figure = new_figure(5.2, 1.6)
        say(figure.subplots(), "nothing was measured")
        return as_written(figure)
    heights = [len(panel) + 1.5 for panel in panels.values()]
    figure = new_figure(6.8, ROW_INCHES * sum(heights) + 0.5)
    stack = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    colors = {name: style.color for name, style in method_styles(list(_families(rows))).items()}
    for axes, (model, panel) in zip(stack, panels.items(), strict=True):
        _panel(axes, model, panel, colors)
    stack[-1].set_xlabel(
        "time of a training step, CutMix = 1\nblack mark: the floor, by counted FLOPs", fontsize=9
    )
    ends = [value for row in rows for value in (row["low"], row["high"], row.get("floor") or 1.0)]
    reach = max(max(ends) - 1, 1 - min(ends), 0.02)
    stack[-1].set_xlim(min(min(ends), 1.0) - 0.06 * reach, max(max(ends), 1.0) + 0.2 * reach)
    return as_written(figure)


def _families(rows: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    """The methods without their options, in order: what shares a colour."""
    return dict.fromkeys(_family(row["method"]) for row in rows)


def _family(label: str) -> str:
    return label.replace(":", " ").replace(",", " ").split()[0]


def _panel(axes: Axes, model: str, panel: Sequence[Mapping[str, Any]], colors: Mapping[str, str]) -> None:
    calm(axes)
    axes.grid(visible=False, axis="y")
    axes.set_title(model, loc="left", fontsize=10.5, color=INK)
    for place, row in enumerate(panel):
        ratio, color = row["ratio"], colors[_family(row["method"])]
        axes.barh(place, ratio - 1, left=1, height=BAR, color=color, alpha=0.8)
        reach = [[max(ratio - row["low"], 0)], [max(row["high"] - ratio, 0)]]
        axes.errorbar([ratio], [place], xerr=reach, color=darker(color), linewidth=1.3, capsize=3, fmt="none")
        end = max(row["high"], row.get("floor") or 0, 1)
        axes.annotate(
            f"{ratio:.3f}×",
            (end, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=darker(color),
        )
        if row.get("floor"):
            axes.vlines(row["floor"], place - BAR / 2, place + BAR / 2, color=INK, linewidth=1.8, zorder=4)
    axes.axvline(1.0, color=FAINT, linewidth=0.9)
    axes.set_yticks(range(len(panel)), [short(row["method"], 40) for row in panel], fontsize=9)
    axes.set_ylim(len(panel) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}×"))
