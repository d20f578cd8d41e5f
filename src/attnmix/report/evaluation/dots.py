"""Dots in rows: accuracy by class, and label-content error by method."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnmix.report.evaluation import records as read
from attnmix.report.evaluation.legend import CONTROL, add_legend
from attnmix.report.evaluation.rows import Rows, grouped
from attnmix.report.results import Results, number
from attnmix.report.style import as_written, method_styles

MOST_CLASSES = 30
STEP = 0.13  # inches


def class_dots(results: Results) -> Figure | None:
    """Top-1 of each class, the models on one line; None for more than `MOST_CLASSES`."""
    groups = grouped(read.table(results, "accuracy", "classes"), "class")
    return _dots(results, Rows(groups, 0.0), "top-1 %") if len(groups) <= MOST_CLASSES else None


def label_dots(results: Results) -> Figure | None:
    """Label-content error of each method and control, with its standard error."""
    found = read.table(results, "label-content", "labels")
    everything = [record for records in found.values() for record in records]
    controls = [str(record.get("label")) for record in everything if record.get("kind") == "control"]
    rows = Rows(grouped(found, "label", controls=controls), STEP)
    return _dots(results, rows, "label-content error", spread="standard error")


def _dots(results: Results, rows: Rows, measure: str, *, spread: str = "") -> Figure | None:
    """A dot for each record, with a bar as long as its `spread` to either side; None without any."""
    if not rows.has(measure):
        return None
    styles = method_styles(read.model_labels(results))
    figure, (axes,) = rows.panels([measure])
    axes.grid(visible=rows.step == 0, axis="y")
    for group, label, record, place in rows.places():
        value, style = number(record.get(measure)), styles[label]
        if value is None:
            continue
        color = CONTROL if group.control else style.color
        axes.errorbar(
            [value],
            [place],
            xerr=number(record.get(spread)),
            color=color,
            marker="|" if group.shared else style.marker,
            markersize=9 if group.shared else 5.5,
            linewidth=1.2,
            capsize=2,
            alpha=0.85,
            clip_on=False,
        )
    handles = {
        label: Line2D([], [], color=style.color, marker=style.marker, linestyle="none")
        for label, style in styles.items()
        if label in rows.labels
    }
    add_legend(figure, handles)
    return as_written(figure)
