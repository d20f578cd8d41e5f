"""A sheet of pictures placed by hand, and what is laid over them.

A layout engine takes seconds over this many axes.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Stroke

from attnmix.report.results import MISSING
from attnmix.report.style import RULE, new_figure, say

MARGIN = 0.12  # inches


class Sheet:
    """A figure addressed in inches from its upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = new_figure(width, height, layout=None)
        self.width, self.height = width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes without a frame."""
        bottom = self.height - top - height
        size = self.width, self.height
        axes = self.figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))
        axes.set_axis_off()
        return axes

    def write(
        self, left: float, middle: float, text: str, *, color: str, weight: str = "normal", size: float = 10
    ) -> None:
        """Text from `left`, its middle at `middle`."""
        position = left / self.width, 1 - middle / self.height
        self.figure.text(*position, text, va="center", fontsize=size, color=color, weight=weight)

    def rule(self, top: float, *, color: str) -> None:
        """A line across the sheet."""
        axes = self.axes(MARGIN, top, self.width - 2 * MARGIN, 0.03)
        axes.add_patch(Rectangle((0, 0), 1, 1, color=color, linewidth=0))


def drawable(image: np.ndarray) -> np.ndarray:
    """An image as finite floats 0..1."""
    return np.clip(np.nan_to_num(np.asarray(image, dtype=float)), 0.0, 1.0)


def outline(axes: Axes, window: tuple[int, int, int, int] | None) -> None:
    """Outline the pasted box, white on dark so that it shows on any picture."""
    if window is None:
        return
    top, left, height, width = window
    box = Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor="white", linewidth=1.4)
    box.set_path_effects([Stroke(linewidth=3, foreground="black", alpha=0.6), Stroke(linewidth=1.4)])
    box.set_clip_on(False)  # a box at the border keeps its whole line
    axes.add_patch(box)


def draw_map(axes: Axes, image: np.ndarray, values: np.ndarray | None) -> None:
    """A map over the greyed image, a square for each token, scaled to its own greatest value; a dash for None."""
    if values is None:
        axes.add_patch(Rectangle((0, 0), 1, 1, facecolor="#f4f5f6", edgecolor=RULE, transform=axes.transAxes))
        say(axes, MISSING)
        return
    grey = drawable(image).mean(axis=-1)
    height, width = grey.shape
    axes.imshow(grey, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    values = np.nan_to_num(np.asarray(values, dtype=float))
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    greatest = max(float(values.max(initial=0.0)), 1e-12)
    veil = axes.imshow(values, cmap="inferno", vmin=0, vmax=greatest, extent=extent)
    veil.set(alpha=0.62, interpolation="nearest")
