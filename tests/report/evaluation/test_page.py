import base64
import html
import re
from io import BytesIO

import pytest
from PIL import Image

from attnmix.report import write_evaluation
from tests.report.evaluation.made_up import make_evaluation
from tests.report.test_page import Page

FIGURES = {
    "accuracy": {"accuracy-reliability", "accuracy-classes"},
    "shift": {"shift"},
    "outliers": set(),
    "occlusion": {"occlusion"},
    "shuffle": {"shuffle"},
    "noise": {"noise"},
    "attack": {"attack"},
    "localisation": {"localisation"},
    "segmentation": {"segmentation"},
    "regions": {"regions"},
    "sharpness": set(),
    "fluctuation": {"fluctuation"},
    "mixed": {"mixed"},
    "label-content": {"label-content"},
    "pictures": {"pictures-unmixed", "pictures-mixed", "pictures-gallery"},
}
NASTY = "$x$ <b>DeiT-S</b> · SMMix"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    results, arrays = make_evaluation(2, classes=5)
    arrays = {label: {name: held[:2] for name, held in found.items()} for label, found in arrays.items()}
    asked = results["questions"]
    asked["noise"]["about"] = "</style><script>alert(1)</script>"
    asked["sharpness"]["answers"].pop(NASTY)
    asked["sharpness"]["left_out"][NASTY] = "its attention has no gradient"
    return write_evaluation(results, arrays, tmp_path_factory.mktemp("evaluation") / "deep" / "er")


@pytest.fixture(scope="module")
def page(written):
    return Page(written.read_text(encoding="utf-8"))


def test_every_figure_is_a_picture_on_disk_and_on_the_page(written, page):
    files = list((written.parent / "figures").iterdir())
    assert {path.stem for path in files} == set.union(*FIGURES.values())
    for path in files:
        with Image.open(BytesIO(path.read_bytes())) as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 150
            assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 3
    inlined = {base64.b64decode(image["src"].partition(",")[2]) for image in page.all("img")}
    assert inlined == {path.read_bytes() for path in files}
    assert all(len(image["alt"]) > 20 and NASTY in image["alt"] for image in page.all("img"))


def test_the_page_needs_nothing_else(written, page):
    text = re.sub(r"data:image/png;base64,[^\"]*", "", written.read_text(encoding="utf-8"))
    assert not re.search(r"https?:|//\w|url\(|@import", text)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    ids = {section["id"] for section in page.all("section") if "id" in section}
    assert {anchor["href"].removeprefix("#") for anchor in page.all("a")} <= ids
    assert "default-src 'none'" in page.all("meta")[-1]["content"]
    assert page.open == []


def test_names_are_shown_as_written(written, page):
    text = written.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>" not in text
    assert text.count("</style>") == 1
    for name in (NASTY, "</style><script>alert(1)</script>", "class_1$"):
        assert html.escape(name) in text
        assert name in page.text


def test_sections_in_the_order_of_the_questions(page):
    sections = [attributes["id"] for attributes in page.all("section") if "id" in attributes]
    assert sections == ["reading", "summary", *(f"question-{name}" for name in FIGURES), "settings"]
    assert "Evaluation of 2 models" in page.text
    assert (
        f"15 questions were asked of deit_small_patch16_224, {NASTY}, on Oxford-IIIT Pet, test images:"
        in page.text
    )
    assert "2026-01-31 12:34 UTC" in page.text
    assert "attnmix evaluate --models a,b --data pets" in page.text
    for words in ("22,050,664", "epsilon", "NVIDIA H200", "What occlusion says (its paper, section 4)."):
        assert words in page.text


def section(written, name):
    text = written.read_text(encoding="utf-8")
    return text.partition(f'<section id="question-{name}"')[2].partition("</section>")[0]


def test_what_all_models_say_is_said_once(written):
    said = Page(section(written, "shift")).text
    assert said.count("Said of all models.") == 1
    assert "deit_small_patch16_224: Said" not in said
    assert "deit_small_patch16_224: Model 0 only." in said
    assert f"{NASTY}: Model 1 only." in said
    assert "Images: 500." in said
    assert f"Time: deit_small_patch16_224: 12 s; {NASTY}: 13 s." in said


def test_reasons_and_unreadable_images_are_named(written):
    assert f"Not asked of {NASTY}: its attention has no gradient" in Page(section(written, "sharpness")).text
    assert (
        "Unreadable images, left out for deit_small_patch16_224: broken.jpg"
        in Page(section(written, "accuracy")).text
    )
    assert "Unreadable" not in section(written, "shift")


def test_long_tables_are_folded_and_very_long_ones_left_to_their_file(written, tmp_path):
    assert "<details" not in section(written, "shift")
    assert Page(section(written, "occlusion")).text.count("drops, 60 rows") == 1
    results, _ = make_evaluation(1, classes=501)
    results["questions"] = {"accuracy": results["questions"]["accuracy"]}
    text = write_evaluation(results, {}, tmp_path).read_text(encoding="utf-8")
    assert "classes: 501 rows, in tables/accuracy-classes.csv" in text
    assert "class_1$" not in text
    assert "class_1$" in (tmp_path / "tables" / "accuracy-classes.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FIGURES)
def test_each_question_alone(name, tmp_path):
    results, arrays = make_evaluation(1, classes=3)
    arrays = {label: {name: held[:1] for name, held in found.items()} for label, found in arrays.items()}
    results = {"questions": {name: results["questions"][name]}}
    path = write_evaluation(results, arrays if name == "pictures" else {}, tmp_path)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == FIGURES[name]
    assert "Evaluation of deit_small_patch16_224" in Page(path.read_text(encoding="utf-8")).text


def bare(value):
    """The same with None in place of every number."""
    if isinstance(value, dict):
        return {key: bare(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [bare(inner) for inner in value]
    return value if isinstance(value, str) else None


@pytest.mark.parametrize("empty", ["values", "answers", "parts"])
def test_missing_parts(empty, tmp_path):
    results, _ = make_evaluation(2, classes=3)
    for asked in results["questions"].values():
        if empty == "values":
            asked["answers"] = bare(asked["answers"])
        elif empty == "answers":
            asked["answers"] = dict.fromkeys(asked["answers"])
        else:
            asked["answers"] = {label: {"values": None, "tables": {}} for label in asked["answers"]}
    page = Page(write_evaluation(results, {}, tmp_path).read_text(encoding="utf-8"))
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    assert list((tmp_path / "figures").iterdir()) == []
    assert page.open == []


def test_no_results_at_all(tmp_path):
    text = write_evaluation({}, {}, tmp_path).read_text(encoding="utf-8")
    assert "Nothing was asked." in Page(text).text
    assert write_evaluation({"questions": {"shift": None}, "models": None}, {}, tmp_path).is_file()
