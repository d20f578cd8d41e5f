"""Grouped bars: accuracy on other sets and on mixed images, and how well maps find the objects."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attnmix.report.evaluation import records as read
from attnmix.report.evaluation.legend import CONTROL, add_legend, hatch_of
from attnmix.report.evaluation.rows import Rows, grouped
from attnmix.report.results import Results, number, show
from attnmix.report.style import FAINT, as_written, method_styles

CONTROLS = ("untrained network", "centre prior", "brightest token", "whole image")
STEP = 0.17  # inches


def shift_bars(results: Results) -> Figure | None:
    """Top-1 and expected calibration error on each set."""
    return _bars(results, Rows(grouped(read.table(results, "shift", "sets"), "set"), STEP), ("top-1 %", "ECE %"))


def mixed_bars(results: Results) -> Figure | None:
    """Top-1 and top-2 on images mixed by each method."""
    rows = Rows(grouped(read.table(results, "mixed", "methods"), "method"), STEP)
    return _bars(results, rows, ("top-1 %", "top-2 %"))


def localisation_bars(results: Results) -> Figure | None:
    """How well each map finds the objects' boxes, the controls in grey."""
    groups = grouped(read.table(results, "localisation", "scores"), "map", controls=CONTROLS)
    return _bars(results, Rows(groups, STEP), ("mIoU %", "box accuracy %", "MaxBoxAcc %"))


def segmentation_bars(results: Results) -> Figure | None:
    """How well each map covers the objects, the controls in grey."""
    groups = grouped(read.table(results, "segmentation", "scores"), "map", controls=CONTROLS)
    return _bars(results, Rows(groups, STEP), ("Jaccard %",))


def _bars(results: Results, rows: Rows, measures: Sequence[str]) -> Figure | None:
    """A panel for each measure that any record has, a bar for each record; None without any."""
    measures = [measure for measure in measures if rows.has(measure)]
    if not measures:
        return None
    styles = method_styles(read.model_labels(results))
    figure, panels = rows.panels(measures)
    for axes, measure in zip(panels, measures, strict=True):
        axes.grid(visible=False, axis="y")
        greatest = 0.0
        for group, label, record, place in rows.places():
            value, style = number(record.get(measure)), styles[label]
            if value is None:
                continue
            greatest = max(greatest, value)
            axes.barh(
                place,
                value,
                height=0.86 * STEP,
                color=CONTROL if group.control else style.color,
                hatch=None if group.control else hatch_of(style),
                edgecolor="white",
                linewidth=0,
            )
            axes.annotate(
                show(value),
                (value, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=7.5,
                color=FAINT,
            )
            if group.control and not group.shared and len(rows.labels) > 1:  # whose control this is
                axes.plot([0.03 * value], [place], color=style.color, marker=style.marker, markersize=5)
        axes.set_xlim(0, 1.16 * greatest or 1)
    handles = {
        label: Patch(facecolor=style.color, edgecolor="white", linewidth=0, hatch=hatch_of(style))
        for label, style in styles.items()
        if label in rows.labels
    }
    add_legend(figure, handles)
    return as_written(figure)
