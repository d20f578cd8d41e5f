"""Accuracy against training time (SMMix Fig. 1), one labelled point for each method."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from attnmix.report.results import Results, method_labels, number, pair, summary_of
from attnmix.report.style import FAINT, as_written, calm, darker, method_styles, new_figure, printable, say, short

FEW = 10  # points: more take a larger figure
GREATLY = 3
GAPS = (8.0, 14.0, 22.0, 32.0, 46.0, 62.0, 80.0)  # in points, between a point and its label
NEAR = 16
PLACES = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
FURTHER = ((1, 2), (-1, 2), (1, -2), (-1, -2), (1, 3), (-1, 3), (1, -3), (-1, -3))


@dataclass(frozen=True)
class Point:
    """Where one method stands: training time as a ratio to CutMix's and top-1 in percent, each with its two ends.

    All runs of a comparison take as many steps, so the ratio of training times is that of step times, which are
    measured in turns; the seconds of a run are also those of what else its machine did.
    """

    label: str
    ratio: float
    ratio_ends: tuple[float, float]
    top1: float
    top1_ends: tuple[float, float]


def measured_points(results: Results) -> list[Point]:
    """The methods of which both accuracy and step time are known, in order."""
    points = []
    for label in method_labels(results):
        row = summary_of(results, label)
        ratio, top1 = number(row.get("step_ratio")), number(row.get("top1_mean"))
        if ratio is not None and top1 is not None:
            ratio_ends = pair(row.get("step_interval")) or (ratio, ratio)
            top1_ends = pair([row.get("top1_min"), row.get("top1_max")]) or (top1, top1)
            points.append(Point(label, ratio, ratio_ends, top1, top1_ends))
    return points


def accuracy_cost(results: Results) -> Figure:
    """Mean top-1 (bars: least to greatest seed) against training time relative to CutMix's (bars: its interval).

    Methods without an accuracy or a step time are left out. Times that differ greatly are on a logarithmic axis.
    """
    styles = method_styles(method_labels(results))
    points = measured_points(results)
    many = len(points) > FEW
    figure = new_figure(9.2, 7.0) if many else new_figure(5.2, 4.2)
    axes = figure.subplots()
    calm(axes)
    for point in points:
        style = styles[point.label]
        axes.errorbar(
            [point.ratio],
            [point.top1],
            xerr=_reach(point.ratio, point.ratio_ends),
            yerr=_reach(point.top1, point.top1_ends),
            color=style.color,
            marker=style.marker,
            markersize=7,
            linewidth=1.4,
            elinewidth=1.0 if many else 1.4,
            capsize=2.5,
        )
    ratios = [point.ratio for point in points]
    if points and max(ratios) > GREATLY * min(ratios) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("training time, CutMix = 1")
    axes.set_ylabel("evaluation top-1 (%)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}×"))
    if points:
        axes.margins(0.08 if many else 0.16, 0.12)
        axes.axvline(1.0, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
        _label(figure, axes, points, [darker(styles[point.label].color) for point in points])
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        say(axes, "no method has both an accuracy and a step time yet")
    return as_written(figure)


def _reach(value: float, ends: tuple[float, float]) -> list[list[float]]:
    """Matplotlib's error lengths [[below], [above]]; an end on the wrong side counts as none."""
    return [[max(value - ends[0], 0.0)], [max(ends[1] - value, 0.0)]]


def _label(figure: Figure, axes: Axes, points: Sequence[Point], colors: Sequence[str]) -> None:
    """Write each point's name beside it where it covers no name, marker or bar; far ones get a leader."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # settles the layout, from which pixel positions follow
    scale = figure.dpi / 72
    to_pixels = axes.transData.transform
    names = [short(point.label, 28) for point in points]
    anchors = [to_pixels((point.ratio, point.top1)) for point in points]
    one = to_pixels((1.0, 0.0))[0]
    taken = [Bbox.from_extents(one - 1, axes.bbox.y0, one + 1, axes.bbox.y1)]
    for point, (x, y) in zip(points, anchors, strict=True):
        (left, bottom) = to_pixels((point.ratio_ends[0], point.top1_ends[0]))
        (right, top) = to_pixels((point.ratio_ends[1], point.top1_ends[1]))
        cap, radius = 3 * scale, 5 * scale
        taken += [
            Bbox.from_extents(x - cap, bottom - cap, x + cap, top + cap),
            Bbox.from_extents(left - cap, y - cap, right + cap, y + cap),
            Bbox.from_extents(x - radius, y - radius, x + radius, y + radius),
        ]
    renderer = canvas.get_renderer()
    for name, anchor, color in zip(names, anchors, colors, strict=True):
        probe = figure.text(0, 0, printable(name), fontsize=9.5, parse_math=False)
        size = np.asarray(probe.get_window_extent(renderer).size)
        probe.remove()
        center, distance = best_place(anchor, size, taken, axes.bbox, scale=scale)
        taken.append(_box(center, size))
        far = distance > NEAR
        if far:
            taken += leader(anchor, center, size, scale=scale)
        note = axes.annotate(
            name,
            xy=tuple(anchor / scale),
            xycoords="figure points",
            xytext=tuple(center / scale),
            textcoords="figure points",
            ha="center",
            va="center",
            fontsize=9.5,
            color=color,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkB": 5} if far else None,
        )
        note.set_in_layout(False)


def best_place(
    anchor: np.ndarray, size: np.ndarray, taken: Sequence[Bbox], frame: Bbox, *, scale: float = 1.0
) -> tuple[np.ndarray, float]:
    """Centre for a box of `size` near `anchor` that covers least of `taken` and leaves `frame` least.

    Places are tried from near to far, right first; the first free one wins, of a far one also its leader's way.
    Returns the centre in pixels and the gap in points between anchor and box.
    """
    best, best_gap, least = np.asarray(anchor, dtype=float), 0.0, np.inf
    others = np.array([box.extents for box in taken]).reshape(-1, 4)
    whole = np.array([frame.extents])
    for gap in GAPS:
        for across, up in PLACES if gap <= NEAR else (*PLACES, *FURTHER):
            reach = gap * scale * (0.75 if across and up else 1.0)
            center = anchor + np.array([across, up]) * (reach + np.array([size[0] / 2, size[1] / 2]))
            box = _box(center, size)
            way = leader(anchor, center, size, scale=scale) if gap > NEAR else []
            cost = _shared([box, *way], others) + 4 * (box.width * box.height - _shared([box], whole))
            if cost < least - 1e-6:
                best, best_gap, least = center, gap, cost
            if cost <= 1e-6:
                return best, best_gap
    return best, best_gap


def leader(anchor: np.ndarray, center: np.ndarray, size: np.ndarray, *, scale: float = 1.0) -> list[Bbox]:
    """Small boxes along the line from a label's edge to its anchor, without the marker."""
    away = np.asarray(anchor) - center
    # where the line leaves the label
    start = np.min(np.divide(size / 2, np.abs(away), out=np.full(2, np.inf), where=away != 0))
    stop = 1 - 8 * scale / max(float(np.hypot(*away)), 1e-9)
    steps = np.linspace(start, stop, max(int((stop - start) * np.hypot(*away) / (4 * scale)), 2))
    return [_box(center + step * away, np.full(2, 1.5 * scale)) for step in steps] if start < stop else []


def _box(center: np.ndarray, size: np.ndarray) -> Bbox:
    return Bbox.from_bounds(*(np.asarray(center) - np.asarray(size) / 2), *size)


def _shared(boxes: Sequence[Bbox], others: np.ndarray) -> float:
    """Area that boxes share with `others` `[n, 4]`, left, bottom, right, top; summed, in square pixels."""
    ours = np.array([box.extents for box in boxes])[:, None]
    sides = np.minimum(ours[..., 2:], others[:, 2:]) - np.maximum(ours[..., :2], others[:, :2])
    return float(sides.clip(min=0).prod(axis=-1).sum())
