import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Stroke

from attnmix.report.sheet import Sheet, border, outline

from .conftest import box_mask


def drawn(add):
    """The pixels of a sheet with a picture on which `add` draws."""
    sheet = Sheet(2, 2)
    axes = sheet.axes(0.2, 0.2, 1.6, 1.6)
    axes.imshow(np.random.default_rng(0).random((24, 24, 3)), interpolation="nearest")
    add(axes)
    canvas = FigureCanvasAgg(sheet.figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).astype(int)


def unit_edges(lines):
    """Lines cut into pairs of neighbouring corners of pixels."""
    found = []
    for (x0, y0), (x1, y1) in lines:
        steps = int(abs(x1 - x0) + abs(y1 - y0))
        xs, ys = np.linspace(x0, x1, steps + 1), np.linspace(y0, y1, steps + 1)
        found += [((xs[i], ys[i]), (xs[i + 1], ys[i + 1])) for i in range(steps)]
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_border_lies_between_every_two_pixels_that_differ(seed):
    mask = np.random.default_rng(seed).random((5, 7)) > 0.5
    wanted = set()
    for y in range(-1, 5):
        for x in range(-1, 7):
            here = 0 <= y < 5 and 0 <= x < 7 and mask[y, x]
            if here != (y + 1 < 5 and 0 <= x < 7 and mask[y + 1, x]):
                wanted.add(((x - 0.5, y + 0.5), (x + 0.5, y + 0.5)))
            if here != (x + 1 < 7 and 0 <= y < 5 and mask[y, x + 1]):
                wanted.add(((x + 0.5, y - 0.5), (x + 0.5, y + 0.5)))
    found = unit_edges(border(mask))
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_a_box_has_four_lines():
    lines = {tuple(map(tuple, line)) for line in border(box_mask(0, 3, 24, 4))}
    assert lines == {
        ((2.5, -0.5), (6.5, -0.5)),
        ((2.5, 23.5), (6.5, 23.5)),
        ((2.5, -0.5), (2.5, 23.5)),
        ((6.5, -0.5), (6.5, 23.5)),
    }


@pytest.mark.parametrize("box", [(6, 12, 10, 8), (0, 0, 24, 24), (20, 0, 4, 3)])
def test_a_box_is_outlined_like_a_rectangle(box):
    def rectangle(axes):
        top, left, height, width = box
        patch = Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor="white", linewidth=1.4)
        patch.set_path_effects([Stroke(linewidth=3, foreground="black", alpha=0.6), Stroke(linewidth=1.4)])
        patch.set_clip_on(False)
        axes.add_patch(patch)

    difference = abs(drawn(lambda axes: outline(axes, box_mask(*box))) - drawn(rectangle))
    assert difference.max() < 20  # corners
    assert abs(drawn(rectangle) - drawn(lambda axes: None)).max() > 100


def test_a_ragged_border_is_drawn_thinner():
    def width(mask):
        axes = Sheet(2, 2).axes(0, 0, 1, 1)
        outline(axes, mask)
        return axes.patches[0].get_linewidth()

    ragged = np.indices((24, 24)).sum(axis=0) % 2 == 0
    assert width(ragged) < 0.5 * width(box_mask(6, 12, 10, 8))
