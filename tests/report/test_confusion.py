import numpy as np
import pytest

from attnmix.report import confusion_matrix
from attnmix.report.confusion import summed_confusion
from attnmix.report.style import png

from .conftest import texts


def results_of(*matrices, names=("cat", "dog")):
    runs = [{"label": "smmix", "confusion": matrix} for matrix in matrices]
    return {"methods": ["smmix"], "class_names": list(names), "runs": runs}


def test_counts_are_summed_over_seeds_then_each_row_adds_up_to_100():
    results = results_of([[3, 1], [0, 4]], [[1, 3], [2, 10]])
    np.testing.assert_array_equal(summed_confusion(results, "smmix"), [[4, 4], [2, 14]])
    shown = confusion_matrix(results, "smmix").axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, [[50, 50], [12.5, 87.5]])


def test_class_names_and_numbers_are_written():
    figure = confusion_matrix(results_of([[3, 1], [0, 4]], names=["$x_1$", r"$\bad"]), "smmix")
    png(figure)  # would fail if the second name were read as a formula
    assert {"$x_1$", r"$\bad", "75", "25", "100", "smmix"} <= set(texts(figure))
    assert "0" not in [text.get_text() for text in figure.axes[0].texts]


def test_a_class_without_images_is_an_empty_row():
    shown = confusion_matrix(results_of([[0, 0], [1, 3]]), "smmix").axes[0].images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), [[True, True], [False, False]])


def test_what_is_no_square_matrix_like_the_first_is_left_out():
    results = results_of(None, [], [[1, 0], [0, 1]], [[1]], [[1, 2]])
    np.testing.assert_array_equal(summed_confusion(results, "smmix"), np.eye(2))
    assert summed_confusion(results_of(None), "smmix") is None
    assert "no confusion matrix recorded" in texts(confusion_matrix(results_of(None), "smmix"))


def test_too_few_class_names_are_filled_with_numbers():
    labels = confusion_matrix(results_of(np.eye(3).tolist(), names=["cat"]), "smmix").axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["cat", "1", "2"]


def test_many_classes_have_fewer_names_and_no_numbers():
    axes = confusion_matrix(results_of(np.eye(100).tolist()), "smmix").axes[0]
    assert len(axes.get_yticklabels()) == 34
    assert not axes.texts


def test_an_unknown_method_is_named():
    with pytest.raises(ValueError, match=r"no method 'cutmx'.*\['smmix'\]"):
        confusion_matrix(results_of([[1]]), "cutmx")
