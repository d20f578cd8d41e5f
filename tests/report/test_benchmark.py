import json

import pytest
from matplotlib.colors import to_hex

from attnmix.report.benchmark import print_table, ratio_chart, write_benchmark

HEAD = ["model", "method", "ratio"]
BODY = [["vit", "[bold]smmix", "1.340"], ["vit", "transmix", "–"]]


def row(model, method, ratio, floor):
    return {
        "model": model,
        "method": method,
        "ratio": ratio,
        "low": ratio - 0.01,
        "high": ratio + 0.02,
        "floor": floor,
    }


ROWS = [
    row("vit", "cutmix", 1.0, 1.0),
    row("vit", "smmix", 1.36, 1.33),
    row("vit", "smmix (mixup_prob=0.5)", 1.18, 1.17),
    {**dict.fromkeys(("ratio", "low", "high", "floor")), "model": "vit", "method": "transmix"},
    row("deit", "none", 0.97, 1.0),
    row("deit", "smmix", 1.35, 1.33),
]


def test_the_console_table_is_whole_also_where_nobody_looks(capsys):
    print_table(HEAD, BODY, notes=["a [note] " * 20])
    lines = capsys.readouterr().out.splitlines()
    assert any("[bold]smmix" in line and "1.340" in line for line in lines)
    assert any("transmix" in line and "–" in line for line in lines)
    assert any("a [note] " * 20 in line + " " for line in lines)


def test_json_markdown_and_picture_are_written(tmp_path):
    given = {"settings": {"command": "attnmix bench"}, "rows": ROWS, "head": HEAD, "body": BODY}
    assert [path.name for path in write_benchmark(tmp_path, "a", **given)] == ["a.json", "a.md"]
    written = write_benchmark(tmp_path / "new", "b", **given, figure=ratio_chart(ROWS))
    assert [path.name for path in written] == ["b.json", "b.md", "b.png"]
    assert json.loads(written[0].read_text())["rows"] == ROWS
    assert "| vit | transmix |" in written[1].read_text()
    assert written[2].read_bytes().startswith(b"\x89PNG")


def test_the_chart_has_a_panel_for_each_model_and_a_bar_from_cutmix_for_each_row():
    vit, deit = ratio_chart(ROWS).axes
    assert (vit.get_title(loc="left"), deit.get_title(loc="left")) == ("vit", "deit")
    assert [text.get_text() for text in vit.get_yticklabels()] == ["cutmix", "smmix", "smmix (mixup_prob=0.5)"]
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in deit.patches]
    assert ends == [pytest.approx((1.0, 0.97)), pytest.approx((1.0, 1.35))]
    assert [text.get_text() for text in deit.texts] == ["0.970×", "1.350×"]


def test_interval_and_floor_are_drawn_inside_the_axes():
    vit, deit = ratio_chart(ROWS).axes
    low, high = vit.get_xlim()
    assert vit.get_xlim() == deit.get_xlim()
    assert low < 0.96
    assert high > 1.38
    drawn = [segment for lines in vit.collections for segment in lines.get_segments()]
    assert any(segment[:, 0] == pytest.approx([1.35, 1.38]) for segment in drawn)  # whiskers
    assert any(segment[:, 0] == pytest.approx([1.33, 1.33]) for segment in drawn)  # floor
    assert all(low < value < high for segment in drawn for value in segment[:, 0])


def test_a_methods_variants_share_its_colour():
    vit, deit = ratio_chart(ROWS).axes
    _, smmix, half = (to_hex(bar.get_facecolor()) for bar in vit.patches)
    assert smmix == half == to_hex(deit.patches[1].get_facecolor())
    assert smmix != to_hex(vit.patches[0].get_facecolor())


def test_nothing_measured_is_said():
    (axes,) = ratio_chart([ROWS[3]]).axes
    assert "nothing was measured" in axes.texts[0].get_text()
