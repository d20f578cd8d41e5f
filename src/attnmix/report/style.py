"""How all figures look: one colour, marker and line for each method, names never read as mathtext."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

Layout = Literal["constrained", "compressed"]

INK = "#222222"
FAINT = "#6b7280"
RULE = "#d7dbe0"

# Okabe and Ito's colours, told apart under every common colour blindness; their yellow is too pale on white. Then
# four dark ones that lie no nearer to any other, under any of these, than theirs to each other.
PALETTE = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d"),
    *("#8c510a", "#762a83", "#1b1b6b", "#7f0000"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":", "-.")

DOTS_PER_INCH = 160
MAX_PIXELS = 60_000  # Agg refuses 2**16 in either direction


@dataclass(frozen=True)
class MethodStyle:
    """What a method is drawn with, alike in every figure."""

    color: str
    marker: str
    line: str


def darker(color: str) -> str:
    """`color` dark enough to read as small text on white."""
    return to_hex([0.7 * channel for channel in to_rgb(color)])


def method_styles(labels: Sequence[str]) -> dict[str, MethodStyle]:
    """A style for each label by its position; past eleven the colours repeat with another line and marker."""
    return {
        label: MethodStyle(
            PALETTE[i % len(PALETTE)],
            MARKERS[i % len(MARKERS)],
            LINES[i // len(PALETTE) % len(LINES)],
        )
        for i, label in enumerate(labels)
    }


def new_figure(width: float, height: float, *, layout: Layout | None = "constrained") -> Figure:
    """A white figure of `width` x `height` inches on the Agg canvas, outside pyplot."""
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def calm(axes: Axes) -> None:
    """Left and bottom rules only, a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, color=FAINT)
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)


def say(axes: Axes, message: str) -> None:
    """Put `message` in the middle of axes that have nothing to show."""
    axes.text(0.5, 0.5, message, transform=axes.transAxes, ha="center", va="center", color=FAINT)


def short(name: object, limit: int) -> str:
    """`name` on one line of at most `limit` characters."""
    line = " ".join(printable(str(name)).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def printable(name: str) -> str:
    """`name` as fonts can draw it: bytes of a file name that are no letters stand as their numbers."""
    return name.encode("utf-8", "backslashreplace").decode()


def as_written(figure: Figure) -> Figure:
    """Show every text of `figure` as it is written: a `$` in a class name starts no formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))
    return figure


def png(figure: Figure) -> bytes:
    """`figure` as PNG bytes, the same for the same figure."""
    width, height = figure.get_size_inches()
    buffer = BytesIO()
    dpi = min(DOTS_PER_INCH, MAX_PIXELS / max(width, height))
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
