"""Learning curves: accuracy and training loss by epoch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attnmix.report.results import Results, method_labels, number, runs_of
from attnmix.report.style import as_written, calm, method_styles, new_figure, say, short

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
    has no line there.
    """
    figure = new_figure(9.6, 4.6)
    styles = method_styles(method_labels(results))
    shown: dict[str, Line2D] = {}
    for axes, (key, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        calm(axes)
        for i, (label, style) in enumerate(styles.items()):
            curve = over_seeds(runs_of(results, label), key)
            if not len(curve.epochs):
                continue
            every = max(1, len(curve.epochs) // 6)  # markers staggered, so that they do not hide each other
            (shown[label],) = axes.plot(
                curve.epochs,
                curve.mean,
                color=style.color,
                linestyle=style.line,
                linewidth=1.6,
                marker=style.marker,
                markersize=5,
                markevery=(i % every, every),
            )
            if np.any(curve.high > curve.low):
                band = axes.fill_between(curve.epochs, curve.low, curve.high, color=style.color, alpha=0.14)
                band.set_linewidth(0)
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
    return as_written(figure)
