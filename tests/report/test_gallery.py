import math

import numpy as np

from attnmix.report import gallery
from attnmix.report.style import method_styles, png

from .conftest import box_mask, make_row, texts


def images(figure):
    return [image for axes in figure.axes for image in axes.images]


def test_rows_are_grouped_by_method_under_five_columns():
    figure = gallery([make_row("smmix"), make_row("cutmix"), make_row("smmix")])
    found = texts(figure)
    for title in ("source", "target", "mixed", "attention", "label weight of the source"):
        assert title in found
    assert found.count("smmix") == found.count("cutmix") == 1
    assert found.count("three") == found.count("eight") == 3
    assert len(images(figure)) == 3 * 5  # attention is two images: the greyed picture and the veil
    assert gallery([make_row()] * 3).get_figheight() > gallery([make_row()]).get_figheight()


def test_weights_are_written_and_drawn_to_scale():
    figure = gallery([make_row(weights={"area": 0.25, "attention": None, "visible": math.nan})])
    found = texts(figure)
    assert "25 %" in found
    assert found.count("–") == 2
    bars = [patch for patch in figure.axes[-1].patches if patch.get_width() < 1]
    assert [bar.get_width() for bar in bars] == [0.25]


def test_a_mix_inside_the_network_is_told():
    assert "mixed inside" in texts(gallery([make_row(inside=True)]))
    assert "mixed inside" not in texts(gallery([make_row()]))


def test_what_was_pasted_is_outlined():
    def outlines(row):
        return [patch for axes in gallery([row]).axes if axes.images for patch in axes.patches]

    boxes = outlines(make_row(pasted=box_mask(6, 12, 10, 8)))
    assert [box.get_path().get_extents().bounds for box in boxes] == [(11.5, 5.5, 8, 10)] * 2
    assert outlines(make_row(pasted=None)) == []
    assert outlines(make_row(pasted=np.zeros((24, 24), dtype=bool))) == []


def test_methods_keep_their_colours_of_the_report():
    methods = ["none", "cutmix", "smmix"]
    figure = gallery([make_row("smmix")], methods=methods)
    colors = [patch.get_facecolor() for axes in figure.axes for patch in axes.patches]
    red, green, blue = (int(method_styles(methods)["smmix"].color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert (red, green, blue, 1.0) in colors
    assert "none" not in texts(figure)


def test_missing_parts_and_odd_pictures():
    odd = np.full((10, 20, 3), np.nan)
    row = make_row(attention=None, pasted=None, weights={}, mixed=odd, source=3 * np.ones((5, 5, 3)))
    blank = make_row(attention=np.zeros((2, 3)), source_label="$x", target_label="$y$ and $z_")
    assert png(gallery([row, blank]))
    assert "no pictures" in texts(gallery([]))
