"""Gallery: what the methods did to pictures, and the label weights that followed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Stroke

from attnmix.report.results import MISSING, number, show_share
from attnmix.report.style import FAINT, INK, RULE, as_written, method_styles, new_figure, say, short

COLUMNS = ("source", "target", "mixed", "attention", "label weight of the source")
WEIGHTS = ("label", "area", "attention", "visible")

# The sheet in inches. Placed by hand: a layout engine takes seconds over this many axes.
MARGIN, HEAD, TITLE, CAPTION, GAP = 0.12, 0.34, 0.42, 0.26, 0.12
CELL = 1.5
BAR_NAMES, BARS, BAR_VALUES = 0.85, 1.55, 0.55
WIDTH = 2 * MARGIN + 4 * (CELL + GAP) + BAR_NAMES + BARS + BAR_VALUES


@dataclass(frozen=True)
class GalleryRow:
    """One mixed picture and where it came from.

    `source`, `target` and `mixed` are [H, W, 3] floats 0..1, `attention` is [gh, gw] or None. `weights` are
    of the source: "label", what the method gives it; "area", its share of the pixels; "attention", its share of
    the attention on the mixed image; "visible", its true share of the object pixels; None where unknown. `window`
    is the pasted box in the mixed image as (top, left, height, width) in pixels, or None.
    """

    method: str
    source: np.ndarray
    target: np.ndarray
    mixed: np.ndarray
    attention: np.ndarray | None
    source_label: str
    target_label: str
    weights: dict[str, float | None]
    window: tuple[int, int, int, int] | None = None


def gallery(rows: Sequence[GalleryRow], *, methods: Sequence[str] = ()) -> Figure:
    """Source, target, mixed image, attention over it and label weights, row by row, grouped by method.

    `methods` is the order of the methods elsewhere in the report, so that they keep their colours; methods
    it does not name follow in the order of the rows.
    """
    present = {row.method for row in rows}
    styles = method_styles(list(dict.fromkeys([*methods, *(row.method for row in rows)])))
    groups = [method for method in styles if method in present]
    height = HEAD + len(groups) * TITLE + max(len(rows), 1) * (CELL + CAPTION) + MARGIN
    sheet = _Sheet(WIDTH, height)

    top = MARGIN / 2
    for i, title in enumerate(COLUMNS):
        sheet.write(_left(i), top + HEAD / 2, title, color=FAINT)
    top += HEAD
    if not rows:
        say(sheet.axes(MARGIN, top, WIDTH - 2 * MARGIN, CELL), "no pictures")
    for method in groups:
        sheet.rule(top + 0.02, color=styles[method].color)
        sheet.write(MARGIN, top + TITLE / 2, short(method, 60), weight="bold", color=INK)
        top += TITLE
        for row in (row for row in rows if row.method == method):
            _draw_row(sheet, top, row, styles[method].color)
            top += CELL + CAPTION
    return as_written(sheet.figure)


class _Sheet:
    """A figure addressed in inches from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = new_figure(width, height, layout=None)
        self.width, self.height = width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        size = self.width, self.height
        axes = self.figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))
        axes.set_axis_off()
        return axes

    def write(self, left: float, middle: float, text: str, *, color: str, weight: str = "normal") -> None:
        position = left / self.width, 1 - middle / self.height
        self.figure.text(*position, text, va="center", fontsize=10, color=color, weight=weight)

    def rule(self, top: float, *, color: str) -> None:
        axes = self.axes(MARGIN, top, self.width - 2 * MARGIN, 0.03)
        axes.add_patch(Rectangle((0, 0), 1, 1, color=color, linewidth=0))


def _left(column: int) -> float:
    return MARGIN + column * (CELL + GAP)


def _draw_row(sheet: _Sheet, top: float, row: GalleryRow, color: str) -> None:
    for column, image in enumerate((row.source, row.target, row.mixed)):
        axes = sheet.axes(_left(column), top, CELL, CELL)
        axes.imshow(_drawable(image), interpolation="nearest")
        if column == 2:
            _outline(axes, row.window)
    for column, label in enumerate((row.source_label, row.target_label)):
        sheet.write(_left(column), top + CELL + CAPTION / 2 - 0.02, short(label, 18), color=INK)
    _draw_attention(sheet.axes(_left(3), top, CELL, CELL), row)
    _draw_weights(sheet.axes(_left(4) + BAR_NAMES, top + 0.1, BARS, CELL - 0.2), row.weights, color)


def _drawable(image: np.ndarray) -> np.ndarray:
    return np.clip(np.nan_to_num(np.asarray(image, dtype=float)), 0.0, 1.0)


def _outline(axes: Axes, window: tuple[int, int, int, int] | None) -> None:
    """Outline the pasted box, white on dark so that it shows on any picture."""
    if window is None:
        return
    top, left, height, width = window
    box = Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor="white", linewidth=1.4)
    box.set_path_effects([Stroke(linewidth=3, foreground="black", alpha=0.6), Stroke(linewidth=1.4)])
    box.set_clip_on(False)  # a box at the border keeps its whole line
    axes.add_patch(box)


def _draw_attention(axes: Axes, row: GalleryRow) -> None:
    """Attention over the greyed mixed image, one square for each token, scaled to its own greatest value."""
    if row.attention is None:
        axes.add_patch(Rectangle((0, 0), 1, 1, facecolor="#f4f5f6", edgecolor=RULE, transform=axes.transAxes))
        say(axes, MISSING)
        return
    grey = _drawable(row.mixed).mean(axis=-1)
    height, width = grey.shape
    axes.imshow(grey, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    attention = np.nan_to_num(np.asarray(row.attention, dtype=float))
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    greatest = max(float(attention.max(initial=0.0)), 1e-12)
    veil = axes.imshow(attention, cmap="inferno", vmin=0, vmax=greatest, extent=extent)
    veil.set(alpha=0.62, interpolation="nearest")
    _outline(axes, row.window)


def _draw_weights(axes: Axes, weights: dict[str, float | None], color: str) -> None:
    """Bars 0..1 from top to bottom; the label's in the method's colour, the truth in ink."""
    names = [name for name in WEIGHTS if name in weights] + [name for name in weights if name not in WEIGHTS]
    colors = {"label": color, "area": "#a8adb5", "visible": INK}
    for i, name in enumerate(names):
        value = number(weights[name])
        axes.barh(i, 1.0, height=0.42, color="#f0f1f3")
        if value is not None:
            axes.barh(i, min(max(value, 0.0), 1.0), height=0.42, color=colors.get(name, FAINT))
        axes.text(-0.05, i, short(name, 10), ha="right", va="center", fontsize=9.5, color=INK)
        axes.text(1.05, i, show_share(value), ha="left", va="center", fontsize=9.5, color=INK)
    axes.set_xlim(0, 1)
    axes.set_ylim(max(len(names), len(WEIGHTS)) - 0.5, -0.5)
