import pytest

from attnmix.report.attention_cost import attention_cost, measured_lines
from attnmix.report.style import png

from .conftest import texts

MIB = 2**20


def row(tokens, quantity, seconds, peak_bytes):
    return {"tokens": tokens, "quantity": quantity, "seconds": seconds, "peak_bytes": peak_bytes}


ROWS = [
    row(49, "fused", 1e-3, MIB),
    row(49, "whole", 2e-3, 2 * MIB),
    row(784, "fused", 0.2, 16 * MIB),
    row(784, "whole", None, None),
]


def lines_named(axes, name):
    return [line for line in axes.get_lines() if line.get_label() == name]


def test_two_panels_a_line_per_quantity_and_two_guides():
    figure = attention_cost(ROWS)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["time (ms)", "peak memory (MiB)"]
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert len(axes.get_lines()) == 4
        assert [note.get_text() for note in axes.texts] == ["N", "N²"]
    (fused,) = lines_named(figure.axes[0], "fused")
    assert list(fused.get_xdata()) == [49, 784]
    assert list(fused.get_ydata()) == pytest.approx([1, 200])
    (memory,) = lines_named(figure.axes[1], "fused")
    assert list(memory.get_ydata()) == [1, 16]
    assert png(figure)[:4] == b"\x89PNG"


def test_a_quantity_looks_alike_in_both_panels():
    figure = attention_cost([*ROWS, row(49, "late", None, MIB)])
    for name in ("fused", "whole"):
        one, other = (lines_named(axes, name)[0] for axes in figure.axes)
        assert (one.get_color(), one.get_marker()) == (other.get_color(), other.get_marker())
    assert lines_named(figure.axes[0], "late") == []
    assert {"fused", "whole", "late"} <= set(texts(figure))  # the legend has all of them


def test_guides_rise_as_their_names_say():
    axes = attention_cost(ROWS).axes[0]
    for line, power in zip(axes.get_lines()[-2:], (1, 2), strict=True):
        low, high = line.get_ydata()
        assert high / low == pytest.approx(16**power)


def test_what_is_missing_or_nothing_has_no_point():
    assert measured_lines([*ROWS, row(196, "fused", 0.0, None)], "seconds", unit=1.0) == {
        "fused": ([49, 784], [1e-3, 0.2]),
        "whole": ([49], [2e-3]),
    }


def test_one_number_of_tokens_has_no_guides():
    assert len(attention_cost(ROWS[:2]).axes[0].get_lines()) == 2


def test_nothing_measured_is_said():
    assert texts(attention_cost([])).count("nothing was measured") == 2
