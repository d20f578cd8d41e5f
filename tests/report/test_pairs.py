import numpy as np
import pytest

from attnmix.report import ImagePairs, MixedPair, pairs
from attnmix.report.style import method_styles, png

from .conftest import box_mask, make_pairs, texts


def images(figure):
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def test_a_column_for_each_pair_and_a_row_for_each_method():
    found = make_pairs(["cutmix", "smmix"], count=3)
    figure = pairs(found)
    wanted = [
        *(found.images[number] for number in (2, 0, 1)),  # sources
        *found.images,
        *(pair.mixed for method in ("cutmix", "smmix") for pair in found.mixed[method]),
    ]
    np.testing.assert_array_equal(images(figure), wanted)
    said = texts(figure)
    assert said[:8] == ["source", "3: $c$", "1: a", "2: b", "target", "1: a", "2: b", "3: $c$"]
    assert said[8:] == ["cutmix", "25 %", "25 %", "25 %", "smmix", "25 %", "25 %", "25 %"]
    assert png(figure)


def test_the_figure_grows_with_methods_and_pairs():
    few = pairs(make_pairs(["a", "b"], count=2)).get_size_inches()
    many = pairs(make_pairs([f"method {i}" for i in range(22)], count=8)).get_size_inches()
    assert many[0] > 1.5 * few[0]
    assert many[1] == pytest.approx(few[1] + 20 * 1.35)


def test_a_partner_of_ones_own_is_named():
    found = make_pairs(["co-mixup"], count=3)
    found.mixed["co-mixup"][1] = MixedPair(found.images[0], 0.4, partner=2)
    assert texts(pairs(found))[-3:] == ["25 %", "40 % of 3", "25 %"]


def test_a_mix_inside_the_network_is_told():
    found = make_pairs(["manifold-mixup"], count=2)
    found.mixed["manifold-mixup"][0] = MixedPair(found.images[0], 0.4, inside=True)
    assert texts(pairs(found))[-2:] == ["40 % inside", "25 %"]


def test_only_what_was_pasted_is_outlined():
    found = make_pairs(["mixup"], count=2)
    found.mixed["mixup"][1] = MixedPair(found.images[0], 0.4, box_mask(2, 3, 4, 5))
    outlined = [
        [p.get_path().get_extents().bounds for p in axes.patches] for axes in pairs(found).axes if axes.images
    ]
    assert outlined == [[], [], [], [], [], [(2.5, 1.5, 5, 4)]]


def test_methods_keep_their_order_and_colours_of_the_report():
    figure = pairs(make_pairs(["smmix", "none"]), methods=["none", "cutmix", "smmix"])
    assert [text for text in texts(figure) if text in ("none", "cutmix", "smmix")] == ["none", "smmix"]
    bars = [axes.patches[0].get_facecolor() for axes in figure.axes if not axes.images and axes.patches][1:]
    styles = method_styles(["none", "cutmix", "smmix"])
    wanted = [tuple(int(styles[name].color[i : i + 2], 16) / 255 for i in (1, 3, 5)) for name in ("none", "smmix")]
    assert [bar[:3] for bar in bars] == wanted


def test_long_names_are_broken_into_lines():
    name = "smmix (side_ratio=[0.25, 0.75], feature_loss=false, source=random, target=minimal)"
    (shown,) = [text for text in texts(pairs(make_pairs([name]))) if text.startswith("smmix")]
    assert len(shown.splitlines()) <= 5
    assert max(map(len, shown.splitlines())) <= 18
    assert shown.endswith("…")


def test_no_pictures():
    assert "no pictures" in texts(pairs(ImagePairs([], [], [], {})))
