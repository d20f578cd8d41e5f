import math

import numpy as np

from attnmix.report import learning_curves
from attnmix.report.curves import over_seeds
from attnmix.report.style import method_styles, png

from .conftest import make_results, texts


def history(*values):
    return {"history": [{"epoch": i + 1, "train_loss": value} for i, value in enumerate(values)]}


def test_mean_and_range_over_the_seeds_that_recorded_an_epoch():
    curve = over_seeds([history(3.0, 2.0, math.nan), history(5.0, None), {"history": None}], "train_loss")
    np.testing.assert_array_equal(curve.epochs, [1, 2])
    np.testing.assert_array_equal(curve.mean, [4.0, 2.0])
    np.testing.assert_array_equal(curve.low, [3.0, 2.0])
    np.testing.assert_array_equal(curve.high, [5.0, 2.0])


def test_one_line_and_one_band_for_each_method_in_its_colour(results):
    figure = learning_curves(results)
    colors = [style.color for style in method_styles(results["methods"]).values()]
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [line.get_color() for line in axes.lines] == colors
        assert len(axes.collections) == len(colors)
    expected = np.mean([run["history"][-1]["eval_top1"] for run in results["runs"] if run["label"] == "smmix"])
    assert figure.axes[0].lines[2].get_ydata()[-1] == expected
    assert [text.get_text() for text in figure.legends[0].get_texts()] == results["methods"]


def test_many_methods_have_a_panel_each_over_the_others():
    results = make_results({f"method {i}": (60 + i, 1.0, None, 0.0) for i in range(9)}, epochs=4)
    results["methods"].append("never ran")
    figure = learning_curves(results)
    assert len(figure.axes) == 2 * 10
    top1, never = figure.axes[3], figure.axes[9]
    assert top1.get_title(loc="left") == "method 3"
    assert len(top1.lines) == 9
    assert top1.lines[-1].get_color() == list(method_styles(results["methods"]).values())[3].color
    finals = [run["history"][-1]["eval_top1"] for run in results["runs"] if run["label"] == "method 3"]
    assert top1.lines[-1].get_ydata()[-1] == np.mean(finals)
    assert len({line.get_color() for line in top1.lines[:-1]}) == 1
    assert "–" in [text.get_text() for text in never.texts]
    png(figure)


def test_one_seed_has_no_band(results):
    results["runs"] = [run for run in results["runs"] if run["seed"] == 0]
    assert not any(axes.collections for axes in learning_curves(results).axes)


def test_missing_parts(broken):
    figure = learning_curves(broken)
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    png(figure)
    assert "nothing recorded yet" in texts(learning_curves({}))
