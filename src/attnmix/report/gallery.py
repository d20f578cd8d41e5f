"""Gallery: what the methods did to pictures, and the label weights that followed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnmix.report.results import number, show_share
from attnmix.report.sheet import MARGIN, Sheet, draw_map, drawable, outline
from attnmix.report.style import FAINT, INK, as_written, method_styles, say, short

COLUMNS = ("source", "target", "mixed", "attention", "label weight of the source")
INSIDE = "mixed inside"  # the network
WEIGHTS = ("label", "area", "attention", "visible")

# The sheet in inches.
HEAD, TITLE, CAPTION, GAP = 0.34, 0.42, 0.26, 0.12
CELL = 1.5
BAR_NAMES, BARS, BAR_VALUES = 0.85, 1.55, 0.55
WIDTH = 2 * MARGIN + 4 * (CELL + GAP) + BAR_NAMES + BARS + BAR_VALUES


@dataclass(frozen=True)
class GalleryRow:
    """One mixed picture and where it came from.

    `source`, `target` and `mixed` are [H, W, 3] floats 0..1, `attention` is [gh, gw] or None. `weights` are
    of the source: "label", what the method gives it; "area", its share of the pixels; "attention", its share of
    the attention on the mixed image; "visible", its true share of the object pixels; None where unknown. `pasted`
    is [H, W] bool, True = pixel of the source, or None. `inside`: mixed inside the network, and `mixed` is the
    image as it goes in.
    """

    method: str
    source: np.ndarray
    target: np.ndarray
    mixed: np.ndarray
    attention: np.ndarray | None
    source_label: str
    target_label: str
    weights: dict[str, float | None]
    pasted: np.ndarray | None = None
    inside: bool = False


def gallery(
    rows: Sequence[GalleryRow], *, methods: Sequence[str] = (), colors: Mapping[str, str] | None = None
) -> Figure:
    """Source, target, mixed image, attention over it and label weights, row by row, grouped by method.

    `methods` is the order of the methods elsewhere in the report, so that they keep their colours; methods
    it does not name follow in the order of the rows. `colors` are of single methods, by name.
    """
    present = {row.method for row in rows}
    styles = method_styles(list(dict.fromkeys([*methods, *(row.method for row in rows)])))
    shades = {method: style.color for method, style in styles.items()} | dict(colors or {})
    groups = [method for method in styles if method in present]
    height = HEAD + len(groups) * TITLE + max(len(rows), 1) * (CELL + CAPTION) + MARGIN
    sheet = Sheet(WIDTH, height)

    top = MARGIN / 2
    for i, title in enumerate(COLUMNS):
        sheet.write(_left(i), top + HEAD / 2, title, color=FAINT)
    top += HEAD
    if not rows:
        say(sheet.axes(MARGIN, top, WIDTH - 2 * MARGIN, CELL), "no pictures")
    for method in groups:
        sheet.rule(top + 0.02, color=shades[method])
        sheet.write(MARGIN, top + TITLE / 2, short(method, 60), weight="bold", color=INK)
        top += TITLE
        for row in (row for row in rows if row.method == method):
            _draw_row(sheet, top, row, shades[method])
            top += CELL + CAPTION
    return as_written(sheet.figure)


def _left(column: int) -> float:
    return MARGIN + column * (CELL + GAP)


def _draw_row(sheet: Sheet, top: float, row: GalleryRow, color: str) -> None:
    for column, image in enumerate((row.source, row.target, row.mixed)):
        axes = sheet.axes(_left(column), top, CELL, CELL)
        axes.imshow(drawable(image), interpolation="nearest")
        if column == 2:
            outline(axes, row.pasted)
    for column, label in enumerate((row.source_label, row.target_label, INSIDE if row.inside else "")):
        sheet.write(_left(column), top + CELL + CAPTION / 2 - 0.02, short(label, 18), color=INK)
    _draw_attention(sheet.axes(_left(3), top, CELL, CELL), row)
    _draw_weights(sheet.axes(_left(4) + BAR_NAMES, top + 0.1, BARS, CELL - 0.2), row.weights, color)


def _draw_attention(axes: Axes, row: GalleryRow) -> None:
    draw_map(axes, row.mixed, row.attention)
    if row.attention is not None:
        outline(axes, row.pasted)


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
