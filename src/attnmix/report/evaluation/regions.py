"""Where attention goes between the regions of a mixed image: a square of numbers for each model."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnmix.report.evaluation import records as read
from attnmix.report.results import MISSING, Results, number
from attnmix.report.style import INK, as_written, new_figure, short

MEASURE = "times uniform"


def region_squares(results: Results) -> Figure | None:
    """Attention from each region (rows) to each (columns) over what uniform attention would give, on one scale.

    None where no model has a number.
    """
    found = read.table(results, "regions", "regions")
    everything = [record for records in found.values() for record in records]
    queries = list(dict.fromkeys(str(record.get("query")) for record in everything))
    keys = list(dict.fromkeys(str(record.get("key")) for record in everything))
    squares = {label: _square(records, queries, keys) for label, records in found.items()}
    squares = {label: square for label, square in squares.items() if np.isfinite(square).any()}
    if not squares:
        return None
    greatest = max(float(np.nanmax(square)) for square in squares.values())
    rows = math.ceil(len(squares) / 4)
    columns = math.ceil(len(squares) / rows)
    figure = new_figure(1.1 + 2.2 * columns, 0.55 + 2.5 * rows, layout="compressed")
    panels = [axes for line in figure.subplots(rows, columns, squeeze=False) for axes in line]
    for i, axes in enumerate(panels):
        if i >= len(squares):
            axes.set_axis_off()
            continue
        label = list(squares)[i]
        axes.set_title(short(label, 24 if columns > 1 else 30), loc="left", fontsize=10)
        _draw(axes, squares[label], queries, keys, max(greatest, 1e-9), first=i % columns == 0)
        if i + columns >= len(squares):
            axes.set_xlabel("attention to")
    return as_written(figure)


def _square(records: Sequence[read.Record], queries: Sequence[str], keys: Sequence[str]) -> np.ndarray:
    square = np.full((len(queries), len(keys)), np.nan)
    for record in records:
        value = number(record.get(MEASURE))
        if value is not None:
            square[queries.index(str(record.get("query"))), keys.index(str(record.get("key")))] = value
    return square


def _draw(
    axes: Axes, square: np.ndarray, queries: Sequence[str], keys: Sequence[str], greatest: float, *, first: bool
) -> None:
    axes.imshow(np.nan_to_num(square), cmap="Blues", vmin=0, vmax=greatest)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    axes.set_xticks(range(len(keys)), [short(key, 12) for key in keys])
    axes.set_yticks(range(len(queries)), [short(query, 12) for query in queries] if first else [])
    if first:
        axes.set_ylabel("attention from")
    for row, column in np.ndindex(*square.shape):
        value = square[row, column]
        axes.text(
            column,
            row,
            f"{value:.2f}×" if np.isfinite(value) else MISSING,
            ha="center",
            va="center",
            fontsize=11,
            color="white" if value > 0.6 * greatest else INK,
        )
