"""Confusion matrices."""

import numpy as np
from matplotlib.figure import Figure

from attnmix.report.results import Results, entries, method_labels, runs_of
from attnmix.report.style import FAINT, INK, as_written, new_figure, say, short

MOST_CLASSES_WITH_NUMBERS = 20
MOST_NAMES = 40


def summed_confusion(results: Results, label: str) -> np.ndarray | None:
    """The method's counts [true, predicted] summed over its seeds; None where no run has a square matrix.

    Runs of another number of classes than the first are left out.
    """
    total: np.ndarray | None = None
    for run in runs_of(results, label):
        counts = np.asarray(run.get("confusion") or [], dtype=float)
        if counts.ndim != 2 or not counts.size or counts.shape[0] != counts.shape[1]:
            continue
        counts = np.nan_to_num(counts, posinf=0.0)
        if total is None:
            total = counts
        elif total.shape == counts.shape:
            total = total + counts
    return total


def confusion_matrix(results: Results, label: str) -> Figure:
    """Share of each true class (a row) by predicted class, in percent, summed over seeds.

    Raises `ValueError` for a label that is not in the results. A class without images is an empty row.
    """
    if label not in method_labels(results):
        raise ValueError(f"no method {label!r} in the results, which have {method_labels(results)}")
    counts = summed_confusion(results, label)
    if counts is None:
        figure = new_figure(5.2, 1.6)
        axes = figure.subplots()
        axes.set_axis_off()
        say(axes, "no confusion matrix recorded")
        axes.set_title(short(label, 48), loc="left", fontsize=11)
        return as_written(figure)

    classes = len(counts)
    names = [short(name, 18) for name in entries(results, "class_names")[:classes]]
    names += [str(i) for i in range(len(names), classes)]
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    percent = np.ma.masked_invalid(100 * shares)

    width = float(np.clip(2.0 + 0.34 * classes, 5.2, 9.0))
    figure = new_figure(width, width * 0.86, layout="compressed")
    axes = figure.subplots()
    axes.set_facecolor("#f0f0f0")
    image = axes.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    step = -(-classes // MOST_NAMES)
    ticks = range(0, classes, step)
    size = 9 if classes <= MOST_CLASSES_WITH_NUMBERS else 7
    slant = any(len(name) > 3 for name in names) or classes > MOST_CLASSES_WITH_NUMBERS
    axes.set_xticks(
        ticks,
        [names[i] for i in ticks],
        parse_math=False,
        fontsize=size,
        rotation=45 if slant else 0,
        ha="right" if slant else "center",
        rotation_mode="anchor",
    )
    axes.set_yticks(ticks, [names[i] for i in ticks], parse_math=False, fontsize=size)
    axes.tick_params(length=0, colors=INK)
    for side in axes.spines.values():
        side.set_color(FAINT)
    if classes <= MOST_CLASSES_WITH_NUMBERS:
        for (row, column), value in np.ndenumerate(percent.filled(0.0)):
            if value >= 0.5:
                color = "white" if value > 55 else INK
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title(short(label, 48), loc="left", fontsize=11)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, label="% of the true class")
    bar.outline.set_visible(False)
    return as_written(figure)
