import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnmix.report import page as report_page
from attnmix.report import write_evaluation, write_report
from attnmix.report.evaluation import page as evaluation_page
from tests.fuzz.trying import fuzz, tried
from tests.report.conftest import METHODS, make_pairs, make_results, make_row

NAMES = (
    "<script>alert(1)</script>",
    "javascript:alert(1)",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><style>*{background:url(//x)}",
    "</pre></section><iframe src=//x>",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "<!--",
    "]]><![CDATA[",
    "&lt;b&gt;&#60;script&#62;",
    "../../../elsewhere",
    "/etc/elsewhere",
    "a\0b",
    "\x1b[31mred",
    "\u202eexe.png",
    "caf\udce9",  # a file name of no UTF-8: was a UnicodeEncodeError, and of matplotlib a TypeError
    "$x^{",
    "",
    "x" * 3000,
)


class Shape(HTMLParser):
    """A page's elements and attributes, with what names may change left out."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.shape, self.text = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        kept = []
        for name, value in attributes:
            # these hold words, or a picture
            kept.append((name, "" if name in ("alt", "aria-label", "src", "id", "href") else value))
            if name == "src":
                assert value.startswith("data:image/png;base64,")
            if name == "href":
                assert re.fullmatch("#[a-z0-9-]+", value)
            assert not name.startswith("on")
        self.shape.append((tag, kept))

    def handle_endtag(self, tag):
        self.shape.append(f"/{tag}")

    def handle_data(self, data):
        self.text.append(data)

    def handle_comment(self, data):
        self.shape.append("comment")

    def handle_decl(self, decl):
        self.shape.append(decl)

    def unknown_decl(self, data):
        self.shape.append("unknown")


def comparison(name, out):
    results = make_results({"cutmix": METHODS["cutmix"], f"{name}.": METHODS["smmix"]}, epochs=2, seeds=1)
    results["title"] = results["command"] = results["notes"][0] = name
    results["class_names"][0] = results["created"] = name
    results["controls"][0]["label"] = name
    for part in ("recipe", "versions", "machine"):
        results[part] = {**results[part], f"{name},": name}
    results["recipe"]["data"] = {"name": name, f"{name}:": [name], "of": {f"{name};": name}}
    results["ablation"] = {
        "title": name,
        "column": name,
        "setting": name,
        "rows": [_row(name, 0), _row(f"{name}|", 1)],
    }
    rows = [make_row(f"{name}.", source_label=name, target_label=name)]
    return write_report(results, rows, out, pairs=make_pairs(["cutmix", f"{name}."]))


def _row(name, number):
    numbers = {"number": number, "paper": 1.0, "paper_difference": 0.0, "ours": 1.0, "ours_std": None}
    further = {"paper_further": {name: 1.0}, "ours_further": {name: 2.0}}
    gaps = {"ours_difference": 0.0, "ours_difference_std": None}
    return {"label": name, "reference": name, "note": name, **numbers, **further, **gaps}


def evaluation(name, out):
    answer = {
        "values": {name: 1.5},
        "tables": {name: [{name: name, "n": 1}]},
        "notes": [name],
        "skipped": [name],
        "images": 2,
        "seconds": 1.0,
    }
    results = {
        "title": name,
        "created": name,
        "command": name,
        "settings": {"data": name, name: name, "shifted": {name: name}},
        "machine": {name: name},
        "models": [{"label": name, "network": name, f"{name}!": name}],
        "questions": {
            f"{name}?": {"about": name, "answers": {name: answer}, "left_out": {}},
            "other": {"about": name, "answers": {}, "left_out": {name: name}},
        },
    }
    return write_evaluation(results, {name: {"images": np.zeros((1, 4, 4, 3), np.uint8)}}, out)


@pytest.fixture(params=[comparison, evaluation], ids=["comparison", "evaluation"])
def write(request):
    return request.param


@pytest.fixture
def quick(monkeypatch):
    """Pictures take seconds, and hold no markup."""
    for module in (report_page, evaluation_page):
        monkeypatch.setattr(module, "write_pictures", lambda pictures, folder: folder.mkdir(parents=True))
    monkeypatch.setattr("attnmix.report.page_parts.png", lambda figure: b"x")
    for name in ("learning_curves", "accuracy_cost", "pairs_sheet", "gallery", "confusion_matrix"):
        monkeypatch.setattr(report_page, name, lambda *_, **__: None)


def shape_of(page):
    return Shape(page.read_text(encoding="utf-8")).shape


def test_names_bring_nothing_into_a_page(write, quick, tmp_path):
    harmless = shape_of(write("harmless", tmp_path / "0"))
    assert len(harmless) > 60
    for number, name in enumerate(NAMES, start=1):
        page = write(name, tmp_path / str(number))
        tried["reports: names"] += 1
        if name:
            assert shape_of(page) == harmless, name
        if "7 * 7" in name:  # no template of its own
            assert "{{ 7 * 7 }}" in "".join(Shape(page.read_text(encoding="utf-8")).text)
        inside = {path for path in (tmp_path / str(number)).rglob("*") if path.is_file()}
        assert all(re.fullmatch(r"[\w.-]+", path.name) for path in inside)


@pytest.mark.parametrize("name", ["caf\udce9", "<b>\0", "$x^{"])
def test_figures_are_drawn_with_any_name(write, tmp_path, name):
    page = write(name, tmp_path / "out")
    assert list((page.parent / "figures").iterdir()) or write is evaluation
    assert page.stat().st_size > 5000


def test_any_name(write, quick, tmp_path):
    harmless = shape_of(write("harmless", tmp_path / "0"))
    letters = st.characters() | st.sampled_from("<>&\"'`={}%/\\#;:-!\udce9")
    count = 0

    @fuzz(20)
    @given(name=st.text(letters, min_size=1, max_size=20).map(lambda name: f"n{name}"))
    def check(name):
        nonlocal count
        count += 1
        tried["reports: any name"] += 1
        assert shape_of(write(name, tmp_path / str(count))) == harmless

    check()
