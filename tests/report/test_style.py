import matplotlib.image
from matplotlib.text import Text

from attnmix.report.style import (
    MAX_PIXELS,
    PALETTE,
    as_written,
    darker,
    method_styles,
    new_figure,
    png,
    short,
)


def test_more_methods_than_colours_still_differ():
    styles = method_styles([f"method {i}" for i in range(3 * len(PALETTE))])
    assert len(set(styles.values())) == len(styles)


def test_a_method_keeps_its_style_when_others_follow():
    assert method_styles(["a", "b"])["b"] == method_styles(["a", "b", "c"])["b"]


def test_short_names():
    assert short("cat", 3) == "cat"
    assert short("two\nlines", 20) == "two lines"
    assert short("caterpillar", 6) == "cater…"


def test_darker_is_darker():
    assert darker("#ffffff") == "#b2b2b2"


def test_dollars_start_no_formula():
    figure = new_figure(2, 1)
    figure.subplots().set_title(r"$\frac")  # as a formula, this would fail to draw
    figure = as_written(figure)
    assert not any(text.get_parse_math() for text in figure.findobj(Text))
    assert png(figure) == png(figure)


def test_a_very_tall_figure_is_drawn_coarser_rather_than_refused(tmp_path):
    path = tmp_path / "tall.png"
    path.write_bytes(png(new_figure(1, 1000, layout=None)))
    assert matplotlib.image.imread(path).shape[0] <= MAX_PIXELS
