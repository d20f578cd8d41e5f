import base64
import html
import re
from html.parser import HTMLParser

import pytest

from attnmix.report import write_report

from .conftest import METHODS, make_pairs, make_results, make_row


class Page(HTMLParser):
    """What a test asks of a page: its tags, their attributes, its text, whether every tag is closed."""

    VOID = frozenset({"meta", "img", "link", "br", "input"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.attributes if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    results = make_results({label: METHODS[label] for label in ("none", "cutmix", "smmix")}, epochs=3)
    results["methods"][0] = results["runs"][0]["label"] = results["summary"][0]["label"] = "<b>none</b>"
    results["runs"] = [run for run in results["runs"] if run["label"] != "none"]
    results["notes"].append("</style><script>alert(2)</script>")
    results["recipe"]["data"]["root"] = "/data/<img src=x>"
    rows = [make_row("smmix", source_label="<script>"), make_row("cutmix", attention=None)]
    out = tmp_path_factory.mktemp("report") / "deep" / "er"
    return write_report(results, rows, out, pairs=make_pairs(["cutmix", "smmix"]))


@pytest.fixture(scope="module")
def page(written):
    return Page(written.read_text(encoding="utf-8"))


def test_figures_are_written_and_inlined(written, page):
    names = {path.name for path in (written.parent / "figures").iterdir()}
    assert names == {
        "learning-curves.png",
        "accuracy-cost.png",
        "gallery.png",
        "pairs.png",
        "confusion-b-none-b.png",
        "confusion-cutmix.png",
        "confusion-smmix.png",
    }
    inlined = {base64.b64decode(image["src"].partition(",")[2]) for image in page.all("img")}
    assert inlined == {path.read_bytes() for path in (written.parent / "figures").iterdir()}


def test_the_page_needs_nothing_else(written, page):
    text = re.sub(r"data:image/png;base64,[^\"]*", "", written.read_text(encoding="utf-8"))
    assert not re.search(r"https?:|//\w|url\(|@import", text)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert not any("href" in attributes or "onload" in attributes for _, attributes in page.attributes)
    assert "default-src 'none'" in page.all("meta")[-1]["content"]


def test_the_page_is_well_formed_and_every_picture_has_words(page):
    assert page.open == []
    assert all(len(image["alt"]) > 10 for image in page.all("img"))
    assert page.all("html")[0]["lang"] == "en"


def test_sections_in_order(page):
    sections = [attributes["id"] for attributes in page.all("section") if "id" in attributes]
    assert sections == ["reading", "summary", "curves", "cost", "pairs", "gallery", "confusion", "settings"]
    for words in (
        "Controls",
        "constant one half",
        "Every run",
        "Command",
        "versions",
        "2.13.0+cu130",
        "H200",
    ):
        assert words in page.text
    assert page.tags.count("details") == 3  # every run, and all confusion matrices but the first
    assert "kwargs.drop_path" in page.text
    assert "2026-01-31 12:34 UTC" in page.text


def test_unequal_shares_of_mixup_are_pointed_out(page):
    assert "<b>none</b> in 0 % of the steps; cutmix, smmix in 50 % of the steps." in page.text


def test_names_are_escaped(written, page):
    text = written.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>" not in text
    assert text.count("</style>") == 1
    for name in ("<b>none</b>", "</style><script>alert(2)</script>", "/data/<img src=x>"):
        assert html.escape(name) in text
        assert name in page.text


def test_interrupted_results(broken, tmp_path):
    text = write_report(broken, [], tmp_path).read_text(encoding="utf-8")
    page = Page(text)
    assert "never-ran" in page.text
    assert "Not shown, for want of an accuracy or a step time: none, smmix, never-ran." in page.text
    assert "Not recorded: cutmix, smmix, never-ran." in page.text
    assert "Controls" not in page.text
    assert not re.search(r"\b(nan|None|inf)\b", page.text)


def test_many_methods_are_folded(tmp_path):
    names = [f"method-{i}" for i in range(22)]
    results = make_results(dict.fromkeys(names, (68.0, 1.1, 0.1, 0.5)), seeds=1, epochs=2)
    for run in results["runs"]:
        run["confusion"] = [[3, 1], [0, 4]]
    rows = [make_row(name) for name in names]
    page = Page(write_report(results, rows, tmp_path, pairs=make_pairs(names)).read_text(encoding="utf-8"))
    assert page.tags.count("details") == 1 + 1 + 22  # every run, the gallery, the confusion matrices
    assert page.open == []
    assert "each method's over the others' in grey" in page.text
    assert all(figure.get("class") == "wide" for figure in page.all("figure")[:4])


def test_no_results_at_all(tmp_path):
    page = Page(write_report({}, [], tmp_path).read_text(encoding="utf-8"))
    assert "attnmix report" in page.text
    assert "–" in page.text
    assert len(list((tmp_path / "figures").iterdir())) == 2


def test_labels_alike_in_a_file_name_do_not_overwrite_each_other(tmp_path):
    labels = ["../a", "A", "a"]
    runs = [{"label": label, "confusion": [[i + 1, 0], [0, 1]]} for i, label in enumerate(labels)]
    write_report({"methods": labels, "runs": runs}, [], tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out" / "figures").glob("confusion*"))
    assert names == ["confusion-a-2.png", "confusion-a-3.png", "confusion-a.png"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
