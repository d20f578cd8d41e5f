"""What a model bears: lines over a strength of disturbance, or over the blocks, a line for each model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from attnmix.report.evaluation import records as read
from attnmix.report.evaluation.legend import add_legend, legend_height
from attnmix.report.results import Results
from attnmix.report.style import as_written, calm, method_styles, new_figure, say

Line = Sequence[tuple[float, float]]
PATCHES = ("random", "salient", "non-salient")


@dataclass(frozen=True)
class Panel:
    """Lines by model under one title; `thin` ones of the same models beside them."""

    title: str
    across: str
    lines: Mapping[str, Line]
    thin: Mapping[str, Line] = field(default_factory=dict)


def occlusion_lines(results: Results) -> Figure | None:
    """Top-1 by the share of dropped patches: a panel for each way to choose them."""
    found = read.table(results, "occlusion", "drops")
    ways = dict.fromkeys([*PATCHES, *(str(r.get("patches")) for records in found.values() for r in records)])
    panels = []
    for way in ways:
        chosen = {
            label: [record for record in records if record.get("patches") == way]
            for label, records in found.items()
        }
        panels.append(Panel(f"{way} patches", "dropped (%)", _lines(chosen, "dropped %", "top-1 %")))
    return _draw(results, [panel for panel in panels if panel.lines], "top-1 (%)", from_zero=True)


def shuffle_lines(results: Results) -> Figure | None:
    """Top-1 by the number of shuffled pieces per side."""
    lines = _lines(read.table(results, "shuffle", "grids"), "pieces per side", "top-1 %")
    panel = Panel("", "pieces per side, shuffled", lines)
    figure = _draw(results, [panel] if lines else [], "top-1 (%)", from_zero=True)
    sides = sorted({x for line in lines.values() for x, _ in line if x > 0})
    if figure is not None and sides:
        axes = figure.axes[0]
        axes.set_xscale("log")  # doubling the pieces is one step
        axes.xaxis.set_major_locator(FixedLocator(sides))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    return figure


def noise_lines(results: Results) -> Figure | None:
    """Top-1 by the standard deviation of Gaussian noise."""
    lines = _lines(read.table(results, "noise", "levels"), "sigma", "top-1 %")
    return _draw(results, [Panel("", "sigma of the noise", lines)] if lines else [], "top-1 (%)", from_zero=True)


def attack_lines(results: Results) -> Figure | None:
    """Top-1 by the step size of the attack."""
    lines = _lines(read.table(results, "attack", "steps"), "step size", "top-1 %")
    return _draw(results, [Panel("", "step size", lines)] if lines else [], "top-1 (%)", from_zero=True)


def fluctuation_lines(results: Results) -> Figure | None:
    """By block: how far the presence of the image tokens spreads, and how far the mixing ratio drifts."""
    found = read.table(results, "fluctuation", "blocks")
    panels = [
        Panel("spread of presence", "block", _lines(found, "block", "spread of presence")),
        Panel(
            "drift of the mixing ratio",
            "block",
            _lines(found, "block", "drift of the mixing ratio"),
            thin=_lines(found, "block", "drift carried along"),
        ),
    ]
    figure = _draw(results, [panel for panel in panels if panel.lines or panel.thin], None)
    for axes in figure.axes if figure is not None else []:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _lines(found: Mapping[str, Sequence[read.Record]], across: str, up: str) -> dict[str, Line]:
    lines = {label: read.points(records, across, up) for label, records in found.items()}
    return {label: line for label, line in lines.items() if line}


def _draw(results: Results, panels: Sequence[Panel], up: str | None, *, from_zero: bool = False) -> Figure | None:
    """Panels beside each other, which share one axis if it has the name `up`; None without any."""
    if not panels:
        return None
    width = {1: 5.6, 2: 9.0}.get(len(panels), 3.6 * len(panels))
    drawn = {label for panel in panels for label in panel.lines}
    figure = new_figure(width, 3.8 + legend_height(drawn, width))
    styles = method_styles(read.model_labels(results))
    shown = {}
    every = figure.subplots(1, len(panels), squeeze=False, sharey=up is not None)[0]
    for axes, panel in zip(every, panels, strict=True):
        calm(axes)
        axes.set_title(panel.title, loc="left", fontsize=11)
        axes.set_xlabel(panel.across)
        for label, style in styles.items():
            look = {"color": style.color, "linestyle": style.line, "marker": style.marker}
            if panel.lines.get(label):
                (shown[label],) = axes.plot(
                    *zip(*panel.lines[label], strict=True), **look, linewidth=1.6, markersize=5
                )
            if panel.thin.get(label):
                axes.plot(*zip(*panel.thin[label], strict=True), color=style.color, linewidth=0.8, alpha=0.8)
        if not axes.lines:
            say(axes, "nothing recorded")
    if up is not None:
        every[0].set_ylabel(up)
    if from_zero:
        every[0].set_ylim(bottom=0)
    add_legend(figure, {label: shown[label] for label in styles if label in shown})
    return as_written(figure)
