"""Learning curves: accuracy and training loss by epoch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attnmix.report.results import MISSING, Results, method_labels, number, runs_of
from attnmix.report.style import (
    RULE,
    MethodStyle,
    as_written,
    calm,
    darker,
    method_styles,
    new_figure,
    say,
    short,
)

TOGETHER = 8  # methods in one panel
COLUMNS = 5
PANELS = (("eval_top1", "evaluation top-1 (%)"), ("train_loss", "training loss"))


@dataclass(frozen=True)
class Curve:
    """One quantity by epoch over the seeds that recorded it: mean, least and greatest, each [epochs]."""

    epochs: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def over_seeds(runs: Iterable[Mapping[str, Any]], key: str) -> Curve:
    """Gather `key` from the runs' histories; an epoch counts the seeds that have a finite value there."""
    found: dict[float, list[float]] = {}
    for run in runs:
        for entry in run.get("history") or []:
            epoch, value = number(entry.get("epoch")), number(entry.get(key))
            if epoch is not None and value is not None:
                found.setdefault(epoch, []).append(value)
    epochs = sorted(found)
    values = [found[epoch] for epoch in epochs]
    return Curve(
        np.array(epochs),
        np.array([np.mean(v) for v in values]),
        np.array([min(v) for v in values]),
        np.array([max(v) for v in values]),
    )


def learning_curves(results: Results) -> Figure:
    """Evaluation top-1 and training loss by epoch: a line for each method's mean over seeds.

    The band around it reaches from the least to the greatest seed. A method without a finite value in a panel
    has no line there. More than eight methods get a panel each, over the others' lines in grey.
    """
    styles = method_styles(method_labels(results))
    curves = {
        key: {label: curve for label in styles if len((curve := over_seeds(runs_of(results, label), key)).epochs)}
        for key, _ in PANELS
    }
    draw = _draw_together if len(styles) <= TOGETHER else _draw_apart
    return as_written(draw(curves, styles))


def _draw_together(curves: Mapping[str, Mapping[str, Curve]], styles: Mapping[str, MethodStyle]) -> Figure:
    figure = new_figure(9.6, 4.6)
    shown: dict[str, Line2D] = {}
    for axes, (key, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        calm(axes)
        for i, (label, style) in enumerate(styles.items()):
            if label not in curves[key]:
                continue
            curve = curves[key][label]
            every = max(1, len(curve.epochs) // 6)  # markers staggered, so that they do not hide each other
            shown[label] = _draw_line(axes, curve, style, marker=style.marker, markevery=(i % every, every))
            shown[label].set_linestyle(style.line)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not axes.lines:
            say(axes, "nothing recorded yet")
    if shown:
        names = [label for label in styles if label in shown]
        columns = 7 if max(map(len, names)) <= 12 else 4
        figure.legend(
            [shown[label] for label in names],
            [short(label, 28) for label in names],
            loc="outside upper left",
            ncols=min(len(names), columns),
            frameon=False,
        )
    return figure


def _draw_apart(curves: Mapping[str, Mapping[str, Curve]], styles: Mapping[str, MethodStyle]) -> Figure:
    rows = -(-len(styles) // COLUMNS)
    figure = new_figure(9.6, len(PANELS) * (0.6 + 1.25 * rows))
    parts: Any = figure.subfigures(len(PANELS), 1)
    for part, (key, title) in zip(parts, PANELS, strict=True):
        part.suptitle(title, x=0.01, ha="left", fontsize=11)
        part.supxlabel("epoch", fontsize=9)
        grid: np.ndarray = part.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        panels: list[Axes] = list(grid.flat)
        for axes in panels[len(styles) :]:
            axes.remove()
        for i, ((label, style), axes) in enumerate(zip(styles.items(), panels, strict=False)):
            calm(axes)
            for other, curve in curves[key].items():
                if other != label:
                    axes.plot(curve.epochs, curve.mean, color=RULE, linewidth=0.7, zorder=1)
            if label in curves[key]:
                _draw_line(axes, curves[key][label], style)
            else:
                say(axes, MISSING)
            axes.set_title(short(label, 28), loc="left", fontsize=8.5, pad=3, color=darker(style.color))
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.tick_params(labelsize=8, labelbottom=i + COLUMNS >= len(styles))  # the last of its column
    return figure


def _draw_line(axes: Axes, curve: Curve, style: MethodStyle, **marks: Any) -> Line2D:
    """The mean's line, over a band from the least to the greatest seed."""
    (line,) = axes.plot(curve.epochs, curve.mean, color=style.color, linewidth=1.6, markersize=5, **marks)
    if np.any(curve.high > curve.low):
        band = axes.fill_between(curve.epochs, curve.low, curve.high, color=style.color, alpha=0.14)
        band.set_linewidth(0)
    return line
