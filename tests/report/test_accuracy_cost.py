import itertools

import numpy as np
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnmix.report import accuracy_cost
from attnmix.report.accuracy_cost import best_place, measured_points
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


def test_labels_of_close_methods_do_not_overlap():
    summary = [{"label": f"method {i}", "top1_mean": 70 + 0.1 * i, "step_ratio": 1 + 0.001 * i} for i in range(4)]
    figure = accuracy_cost({"summary": summary})
    png(figure)
    renderer = figure.canvas.get_renderer()
    boxes = [Text.get_window_extent(note, renderer) for note in figure.axes[0].texts]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


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
