"""A sheet of pictures placed by hand, and what is laid over them.

A layout engine takes seconds over this many axes.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import Stroke

from attnmix.report.results import MISSING
from attnmix.report.style import RULE, new_figure, say

MARGIN = 0.12  # inches
LONG = 6  # sides of the picture: a longer border is drawn thinner


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


def outline(axes: Axes, pasted: np.ndarray | None) -> None:
    """Outline what was pasted, `[H, W]` bool, along its pixels' edges, white on dark to show on any picture."""
    if pasted is None or not pasted.any():
        return
    ends = border(pasted)
    # a box has four sides; a ragged border would hide what it encloses under lines as thick
    length = np.abs(ends[:, 1] - ends[:, 0]).sum() / (sum(pasted.shape) / 2)
    thin = float(np.clip(LONG / length, 0.35, 1.0))
    # one path, so that lines do not shade each other where they meet
    path = Path(np.reshape(ends, (-1, 2)), np.tile([Path.MOVETO, Path.LINETO], len(ends)))
    lines = PathPatch(path, fill=False, edgecolor="white", linewidth=1.4 * thin, capstyle="projecting")
    dark = Stroke(linewidth=3 * thin, foreground="black", alpha=0.6)
    lines.set_path_effects([dark, Stroke(linewidth=1.4 * thin)])
    lines.set_clip_on(False)  # a region at the border keeps its whole line
    axes.add_patch(lines)


def border(pasted: np.ndarray) -> np.ndarray:
    """Where a mask `[H, W]` ends: straight lines `[n, 2, 2]`, both ends as (x, y); pixel centres are whole."""
    found = []
    for mask, turned in ((pasted, False), (pasted.T, True)):
        inside = np.pad(np.asarray(mask, dtype=bool), 1)
        edge = inside[1:] != inside[:-1]  # between two rows; its outer columns are False
        change = np.diff(edge.astype(np.int8), axis=1)
        row, first = np.nonzero(change == 1)
        _, last = np.nonzero(change == -1)
        lines = np.stack([np.stack([first, row], axis=-1), np.stack([last, row], axis=-1)], axis=1)
        found.append(lines[..., ::-1] if turned else lines)
    return np.concatenate(found) - 0.5


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
