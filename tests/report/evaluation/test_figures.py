import numpy as np
import pytest
from matplotlib.collections import PathCollection

from attnmix.report.evaluation.bars import localisation_bars, shift_bars
from attnmix.report.evaluation.calibration import reliability
from attnmix.report.evaluation.dots import class_dots, label_dots
from attnmix.report.evaluation.figures import DRAWINGS
from attnmix.report.evaluation.legend import CONTROL
from attnmix.report.evaluation.lines import fluctuation_lines, occlusion_lines, shuffle_lines
from attnmix.report.evaluation.pictures import MIXED, UNMIXED, gallery_rows, mixed_gallery, picture_sheets
from attnmix.report.evaluation.regions import region_squares
from attnmix.report.style import PALETTE, method_styles
from tests.report.conftest import texts
from tests.report.evaluation.made_up import make_evaluation

NASTY = "$x$ <b>DeiT-S</b> · SMMix"


@pytest.fixture
def results():
    return make_evaluation(2, classes=4)[0]


def colors(results):
    return [style.color for style in method_styles([model["label"] for model in results["models"]]).values()]


def test_lines_are_the_records_in_the_colours_of_the_models(results):
    for answer in results["questions"]["occlusion"]["answers"].values():
        answer["tables"]["drops"].reverse()  # a line runs from left to right all the same
    figure = occlusion_lines(results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "random patches",
        "salient patches",
        "non-salient patches",
    ]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes, fall in zip(figure.axes, (40, 75, 20), strict=True):
        assert [line.get_color() for line in axes.lines] == colors(results)
        np.testing.assert_array_equal(axes.lines[1].get_xdata(), 10 * np.arange(10))
        np.testing.assert_allclose(axes.lines[1].get_ydata(), 79 - fall * (np.arange(10) / 9) ** 2)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["deit_small_patch16_224", NASTY]
    assert not any(text.get_parse_math() for text in figure.legends[0].get_texts())


def test_pieces_double_along_the_axis(results):
    axes = shuffle_lines(results).axes[0]
    assert axes.get_xscale() == "log"
    assert list(axes.get_xticks()) == [1, 2, 4, 7, 14]


def test_the_drift_carried_along_is_a_thin_line_beside_the_drift(results):
    spread, drift = fluctuation_lines(results).axes
    assert len(spread.lines) == 2
    assert len(drift.lines) == 4
    thin = min(drift.lines, key=lambda line: line.get_linewidth())
    np.testing.assert_allclose(thin.get_ydata(), 0.006 * np.arange(12))


def test_a_model_keeps_its_colour_where_another_has_no_answer(results):
    results["questions"]["shuffle"]["answers"].pop("deit_small_patch16_224")
    (line,) = shuffle_lines(results).axes[0].lines
    assert line.get_color() == colors(results)[1]


def test_bars_are_as_long_as_the_values_and_say_them(results):
    top1, ece = shift_bars(results).axes
    assert [bar.get_width() for bar in top1.patches] == [70, 69, 61, 60, 52, 51, 43, 42]
    assert [text.get_text() for text in ece.texts][::2] == ["3.0", "5.0", "7.0", "9.0"]
    assert [label.get_text() for label in top1.get_yticklabels()] == [
        "imagenet-a",
        "imagenet-r",
        "imagenet-o",
        "sketch",
    ]


def test_controls_are_grey_and_drawn_once_where_models_share_them(results):
    axes = localisation_bars(results).axes[0]
    widths = {bar.get_width(): bar.get_facecolor() for bar in axes.patches}
    assert list(widths) == [40, 41, 21, 21.3, 35.5, 30]
    grey = tuple(int(CONTROL[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert [color[:3] == grey for color in widths.values()] == [False, False, True, True, True, True]
    assert [line.get_color() for line in axes.lines] == colors(results)  # whose untrained network it is


def test_past_the_colours_bars_are_told_apart_by_stripes():
    count = len(PALETTE)
    results, _ = make_evaluation(count + 1, classes=1)
    bars = shift_bars(results).axes[0].patches[: count + 1]
    assert bars[0].get_facecolor() == bars[count].get_facecolor()
    assert bars[0].get_hatch() is None
    assert bars[count].get_hatch()


def test_dots_of_classes_up_to_thirty():
    results, _ = make_evaluation(1, classes=30)
    assert len(class_dots(results).axes[0].get_yticks()) == 30
    assert class_dots(make_evaluation(1, classes=31)[0]) is None


def test_label_content_with_its_standard_error(results):
    axes = label_dots(results).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][-2:] == [
        "constant one half",
        "an untrained network\n(TransMix)",
    ]
    reach = [path.vertices[:, 0] for bars in axes.collections for path in bars.get_paths()]
    np.testing.assert_allclose(reach[0], [0.167, 0.175])
    drawn = [container.lines[0] for container in axes.containers]
    assert [line.get_color() for line in drawn] == colors(results) * 3 + [CONTROL] * 3
    results["questions"]["label-content"]["answers"][NASTY]["tables"]["labels"][0]["standard error"] = None
    assert label_dots(results) is not None


def test_reliability_has_a_panel_for_each_model_and_leaves_empty_bins_out(results):
    figure = reliability(results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["deit_small_patch16_224", NASTY]
    bins = results["questions"]["accuracy"]["answers"][NASTY]["tables"]["bins"]
    filled = [(row["mean confidence %"], row["accuracy %"]) for row in bins if row["images"]]
    (dots,) = (artist for artist in figure.axes[1].collections if isinstance(artist, PathCollection))
    np.testing.assert_allclose(dots.get_offsets(), filled)
    many = reliability(make_evaluation(9, classes=1)[0])
    assert len(many.axes) == 1
    assert len(many.axes[0].lines) == 1 + 9  # the diagonal


def test_regions_share_a_scale_and_show_their_numbers(results):
    figure = region_squares(results)
    np.testing.assert_allclose(figure.axes[1].images[0].get_array(), [[1.35, 0.75], [0.75, 1.35]])
    assert {axes.images[0].get_clim() for axes in figure.axes} == {(0, 1.35)}
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.30×", "0.70×", "0.70×", "1.30×"]
    for answer in results["questions"]["regions"]["answers"].values():
        answer["tables"]["regions"][0]["times uniform"] = None
    assert "–" in texts(region_squares(results))


@pytest.mark.parametrize("name", DRAWINGS)
def test_nothing_to_draw_is_no_figure(name):
    assert [drawing.draw({}) for drawing in DRAWINGS[name]] == [None] * len(DRAWINGS[name])


def shown(figure):
    return [axes for axes in figure.axes if axes.images]


def test_pictures_beside_their_maps():
    results, arrays = make_evaluation(2)
    ((labels, figure),) = picture_sheets(results, arrays, UNMIXED)
    assert labels == ["deit_small_patch16_224", NASTY]
    assert len(shown(figure)) == 6 * (1 + 2 * 2)
    np.testing.assert_allclose(shown(figure)[0].images[0].get_array(), arrays[labels[0]]["images"][0] / 255)
    np.testing.assert_array_equal(shown(figure)[4].images[1].get_array(), arrays[NASTY]["activation"][0])
    said = {text.get_text(): text.get_color() for text in figure.texts}
    assert said["Bengal, 91 %"] != said["Egyptian Mau, 91 %"] == said["Egyptian Mau"]
    assert texts(figure).count("Bengal, 91 %") == 3


def test_mixed_pictures_with_their_box_and_both_classes():
    results, arrays = make_evaluation(1)
    ((labels, figure),) = picture_sheets(results, arrays, MIXED)
    assert {"for source class", "for target class", "pug", "on $Birman", "1. pug", "2. Abyssinian"} <= set(
        texts(figure)
    )
    boxes = [patch.get_path().get_extents().bounds for patch in shown(figure)[3].patches]
    assert boxes == [(7.5, 3.5, 14, 12)]  # of the second image


def test_more_than_three_models_are_spread_over_sheets():
    results, arrays = make_evaluation(4)
    arrays = {label: {name: arrays[label][name][:1] for name in ("images", "attention")} for label in arrays}
    labels = [labels for labels, _ in picture_sheets(results, arrays, UNMIXED)]
    assert [len(part) for part in labels] == [2, 2]
    assert [label for part in labels for label in part] == [model["label"] for model in results["models"]]


def test_missing_arrays():
    results, arrays = make_evaluation(2)
    first, second = arrays.values()
    del first["images"], first["activation"], first["mixed_pasted"], second["mixed_pasted"]
    ((_, figure),) = picture_sheets(results, arrays, UNMIXED)
    assert texts(figure).count("–") == 6  # the first model's activation
    for held in (first, second):
        del held["mixed_activation_source"], held["mixed_activation_target"]
    ((_, figure),) = picture_sheets(results, arrays, MIXED)
    assert "attention" in texts(figure)
    assert not any(axes.patches for axes in shown(figure))
    del second["images"]
    assert list(picture_sheets(results, arrays, UNMIXED)) == []


def test_gallery_rows():
    results, arrays = make_evaluation(2)
    arrays[NASTY]["gallery_attention"][0] = np.nan
    rows = [row for _, row in gallery_rows(results, arrays)]
    assert [row.method for row in rows][:2] == [
        "deit_small_patch16_224 · cutmix",
        "deit_small_patch16_224 · transmix",
    ]
    assert len(rows) == 6
    assert np.argwhere(rows[0].pasted)[[0, -1]].tolist() == [[0, 8], [11, 21]]
    assert not rows[2].pasted.any()
    assert rows[3].attention is None
    assert rows[0].weights == {"label": 0.31, "area": 0.25, "attention": 0.31, "visible": None}
    np.testing.assert_allclose(rows[1].target, arrays["deit_small_patch16_224"]["gallery_target"][1] / 255)
    del arrays[NASTY]["gallery_source"]
    assert len(list(gallery_rows(results, arrays))) == 3


def test_the_gallery_keeps_the_colours_of_the_models():
    results, arrays = make_evaluation(2)
    rules = [axes.patches[0].get_facecolor() for axes in mixed_gallery(results, arrays).axes if not axes.images]
    drawn = {tuple(round(255 * part) for part in color[:3]) for color in rules}
    first, second = (tuple(bytes.fromhex(color[1:])) for color in colors(results))
    assert {first, second} <= drawn
    unused = list(method_styles("abc").values())[2].color
    assert tuple(bytes.fromhex(unused[1:])) not in drawn
