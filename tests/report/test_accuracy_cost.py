import itertools

import numpy as np
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnmix.report import accuracy_cost
from attnmix.report.accuracy_cost import best_place, leader, measured_points
from attnmix.report.style import png

from .conftest import texts


def test_one_labelled_point_for_each_method(results):
    figure = accuracy_cost(results)
    assert len(figure.axes[0].containers) == 3
    assert [text.get_text() for text in figure.axes[0].texts] == results["methods"]
    smmix = measured_points(results)[2]
    row = results["summary"][2]
    assert (smmix.ratio, smmix.ratio_ends) == (1.18, pytest.approx((1.16, 1.20)))
    assert (smmix.top1, smmix.top1_ends) == (row["top1_mean"], (row["top1_min"], row["top1_max"]))


def test_methods_without_accuracy_or_step_time_are_left_out(broken):
    assert [point.label for point in measured_points(broken)] == ["cutmix"]
    assert measured_points(broken)[0].ratio_ends == (1.0, 1.0)
    assert len(accuracy_cost(broken).axes[0].containers) == 1
    assert "no method has both an accuracy and a step time yet" in texts(accuracy_cost({}))


@pytest.mark.parametrize("count", [4, 22])
def test_labels_of_close_methods_do_not_overlap(count):
    summary = [
        {"label": f"method {i}", "top1_mean": 70 + 0.1 * (7 * i % count), "step_ratio": 1 + 0.004 * i}
        for i in range(count)
    ]
    figure = accuracy_cost({"summary": summary})
    png(figure)
    renderer = figure.canvas.get_renderer()
    boxes = [Text.get_window_extent(note, renderer) for note in figure.axes[0].texts]
    assert len(boxes) == count
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_times_that_differ_greatly_are_on_a_logarithmic_axis():
    def scale(most):
        rows = [{"label": str(i), "top1_mean": 70, "step_ratio": ratio} for i, ratio in enumerate((0.9, 1, most))]
        return accuracy_cost({"summary": rows}).axes[0].get_xscale()

    assert scale(2.0) == "linear"
    assert scale(6.8) == "log"


def test_a_leader_crosses_nothing():
    frame = Bbox.from_bounds(0, 0, 400, 400)
    anchor, size = np.array([200.0, 200.0]), np.array([40.0, 10.0])
    # beside every near place, but on no leader's way
    dots = [(230, 203), (170, 203), (226, 211), (226, 189), (174, 211), (174, 189), (190, 215), (190, 185)]
    taken = [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in dots]
    free, gap = best_place(anchor, size, taken, frame)
    assert gap > 16
    one = leader(anchor, free, size)[2]
    other, gap = best_place(anchor, size, [*taken, one], frame)
    assert gap > 16
    assert other.tolist() != free.tolist()
    assert not any(part.overlaps(box) for part in leader(anchor, other, size) for box in [*taken, one])


def test_the_leader_goes_from_the_label_to_the_marker():
    parts = leader(np.array([0.0, 0.0]), np.array([100.0, 0.0]), np.array([40.0, 10.0]))
    middles = [(part.x0 + part.x1) / 2 for part in parts]
    assert (max(middles), min(middles)) == pytest.approx((80, 8))
    assert all(part.y0 < 0 < part.y1 for part in parts)


def test_a_label_takes_the_nearest_free_place():
    frame = Bbox.from_bounds(0, 0, 200, 200)
    anchor, size = np.array([100.0, 100.0]), np.array([40.0, 10.0])
    center, gap = best_place(anchor, size, [], frame)
    np.testing.assert_allclose(center, [128, 100])
    assert gap == 8
    center, _ = best_place(anchor, size, [Bbox.from_bounds(101, 0, 99, 200)], frame)
    np.testing.assert_allclose(center, [72, 100])


def test_a_label_stays_in_the_frame():
    frame = Bbox.from_bounds(0, 0, 200, 200)
    center, _ = best_place(np.array([195.0, 195.0]), np.array([40.0, 10.0]), [], frame)
    assert center[0] + 20 <= 200
    assert center[1] + 5 <= 200
