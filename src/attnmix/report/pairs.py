"""What each method does to the same pairs of images: a column for each pair, a row for each method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnmix.report.results import show_share
from attnmix.report.sheet import MARGIN, Sheet, drawable, outline
from attnmix.report.style import FAINT, INK, RULE, as_written, method_styles, say, short

# The sheet in inches.
NAMES, CELL, GAP, LINE, ROW_GAP, RULED = 1.62, 1.05, 0.08, 0.2, 0.1, 0.16
BAR = 0.05
NAME_WIDTH, NAME_LINES = 18, 5  # in characters, and lines of one


@dataclass(frozen=True)
class MixedPair:
    """What a method made of one pair.

    `mixed` is [H, W, 3] floats 0..1, `source_weight` the weight of the source's label. `pasted` is [H, W] bool,
    True = pixel of the source, or None. `partner` is the number of the image taken as source, where the method
    chose another than the column's. `inside`: mixed inside the network, and `mixed` is the image as it goes in.
    """

    mixed: np.ndarray
    source_weight: float
    pasted: np.ndarray | None = None
    partner: int | None = None
    inside: bool = False


@dataclass(frozen=True)
class ImagePairs:
    """The same pairs, mixed by every method.

    `images` are [H, W, 3] floats 0..1 with their `labels`; `sources` gives for each of them, as target of its
    column, the number of its source, from 0. `mixed` holds a `MixedPair` for each column, by method.
    """

    images: Sequence[np.ndarray]
    labels: Sequence[str]
    sources: Sequence[int]
    mixed: Mapping[str, Sequence[MixedPair]]


def pairs(found: ImagePairs, *, methods: Sequence[str] = ()) -> Figure:
    """Sources and targets in two rows, then a row for each method, with the label weight of each source.

    `methods` is the order of the methods elsewhere in the report, so that they keep their colours; methods it does
    not name follow.
    """
    styles = method_styles(list(dict.fromkeys([*methods, *found.mixed])))
    shown = [method for method in styles if method in found.mixed]
    row = CELL + LINE + ROW_GAP
    width = 2 * MARGIN + NAMES + max(len(found.images), 1) * (CELL + GAP) - GAP
    sheet = Sheet(width, 2 * MARGIN + (2 + len(shown)) * row + RULED)
    top = MARGIN
    if not found.images:
        say(sheet.axes(MARGIN, top, width - 2 * MARGIN, CELL), "no pictures")
    for name, numbers in (("source", found.sources), ("target", range(len(found.images)))):
        sheet.write(MARGIN, top + CELL / 2, name, color=FAINT)
        for column, number in enumerate(numbers):
            _draw(sheet, column, top, found.images[number], None, f"{number + 1}: {found.labels[number]}")
        top += row
    sheet.rule(top + RULED / 2 - ROW_GAP, color=RULE)
    top += RULED
    for method in shown:
        bar = sheet.axes(MARGIN, top, BAR, CELL)
        bar.add_patch(Rectangle((0, 0), 1, 1, color=styles[method].color, linewidth=0))
        name = "\n".join(wrap(method, NAME_WIDTH, max_lines=NAME_LINES, placeholder="…"))
        sheet.write(MARGIN + 3 * BAR, top + CELL / 2, name, color=INK, weight="bold")
        for column, pair in enumerate(found.mixed[method]):
            of = "" if pair.partner is None else f" of {pair.partner + 1}"
            of += " inside" if pair.inside else ""
            _draw(sheet, column, top, pair.mixed, pair.pasted, show_share(pair.source_weight) + of)
        top += row
    return as_written(sheet.figure)


def _draw(
    sheet: Sheet, column: int, top: float, image: np.ndarray, pasted: np.ndarray | None, beneath: str
) -> None:
    left = MARGIN + NAMES + column * (CELL + GAP)
    axes = sheet.axes(left, top, CELL, CELL)
    axes.imshow(drawable(image), interpolation="nearest")
    outline(axes, pasted)
    sheet.write(left, top + CELL + LINE / 2, short(beneath, 15), color=INK, size=9)
