"""Reliability: does a model that is 80 % sure have it right in 80 % of the cases?"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnmix.report.evaluation import records as read
from attnmix.report.evaluation.legend import add_legend, legend_height
from attnmix.report.results import Results, number
from attnmix.report.style import FAINT, MethodStyle, as_written, calm, method_styles, new_figure, short

MOST_PANELS = 8


def reliability(results: Results) -> Figure | None:
    """Accuracy against mean confidence of each bin, a dot as large as the bin's share of the images.

    A panel for each model, or for more than `MOST_PANELS` one with a line for each; None without any bin.
    """
    bins = {}
    for label, records in read.table(results, "accuracy", "bins").items():
        filled = [_dot(record) for record in records]
        if any(filled):
            bins[label] = sorted(dot for dot in filled if dot)
    if not bins:
        return None
    styles = method_styles(read.model_labels(results))
    many = len(bins) > MOST_PANELS
    rows = 1 if many else math.ceil(len(bins) / 4)
    columns = 1 if many else math.ceil(len(bins) / rows)
    side = 4.6 if many or len(bins) == 1 else 2.75
    width = columns * side + (0.4 if columns > 1 else 0.6)
    height = rows * (side + 0.3) + (legend_height(bins, width) if many else 0.0)
    figure = new_figure(width, height, layout="compressed")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    flat = [axes for line in panels for axes in line]
    handles = {}
    for i, (label, dots) in enumerate(bins.items()):
        axes = flat[0 if many else i]
        if i == 0 or not many:
            _frame(axes)
        handles[label] = _draw(axes, dots, styles[label])
        if not many:
            axes.set_title(short(label, 46 if len(bins) == 1 else 26), loc="left", fontsize=10)
    for axes in flat[len(bins) if not many else 1 :]:
        axes.set_axis_off()
    for column in range(columns):  # the lowest panel of each column says what is across
        lowest = [line[column] for line in panels if line[column].axison][-1]
        lowest.set_xlabel("mean confidence (%)")
        lowest.tick_params(labelbottom=True)
    for line in panels:
        line[0].set_ylabel("accuracy (%)")
    if many:
        add_legend(figure, handles)
    return as_written(figure)


def _dot(record: read.Record) -> tuple[float, float, float] | None:
    """(confidence, accuracy, images) of a bin; None for an empty one."""
    confidence, accuracy = number(record.get("mean confidence %")), number(record.get("accuracy %"))
    if confidence is None or accuracy is None:
        return None
    return confidence, accuracy, number(record.get("images")) or 0.0


def _frame(axes: Axes) -> None:
    calm(axes)
    axes.plot([0, 100], [0, 100], color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
    axes.set(xlim=(-2, 102), ylim=(-2, 102), xticks=range(0, 101, 25), yticks=range(0, 101, 25))
    axes.set_aspect("equal")


def _draw(axes: Axes, dots: Sequence[tuple[float, float, float]], style: MethodStyle) -> Line2D:
    confidence, accuracy, images = zip(*dots, strict=True)
    greatest = max(*images, 1.0)
    sizes = [12 + 90 * count / greatest for count in images]
    (line,) = axes.plot(confidence, accuracy, color=style.color, linestyle=style.line, linewidth=1.2)
    axes.scatter(confidence, accuracy, s=sizes, color=style.color, alpha=0.75, linewidth=0, zorder=2)
    return line
