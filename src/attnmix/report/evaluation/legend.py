"""The names of the models above the figures of an evaluation, and how their bars differ past seven."""

import math
from collections.abc import Collection, Mapping

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from attnmix.report.style import MethodStyle, short

CONTROL = "#a8adb5"  # controls are grey
LONGEST = 32  # characters of a model's name


def add_legend(figure: Figure, handles: Mapping[str, Artist]) -> None:
    """Names above the panels, in as many columns as fit the figure's width."""
    if not handles:
        return
    figure.legend(
        list(handles.values()),
        [short(label, LONGEST) for label in handles],
        loc="outside upper left",
        ncols=_columns(handles, figure.get_figwidth()),
        frameon=False,
    )


def legend_height(labels: Collection[str], width: float) -> float:
    """Inches that the names take above a figure of `width` inches."""
    return 0.1 + 0.21 * math.ceil(len(labels) / _columns(labels, width)) if labels else 0.0


def _columns(labels: Collection[str], width: float) -> int:
    widest = 0.7 + 0.085 * max(len(short(label, LONGEST)) for label in labels)
    return max(1, min(len(labels), int(width / widest)))


def hatch_of(style: MethodStyle) -> str | None:
    """Stripes for a bar whose colour stands for an earlier model already."""
    return None if style.line == "-" else "////"
