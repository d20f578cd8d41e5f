import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from attnmix.data.annotations import open_annotations
from attnmix.data.annotations_coco import CocoTruth
from attnmix.data.annotations_xml import XmlTruth, read_xml
from attnmix.data.folder import open_folder
from attnmix.data.outlines import segmentation_mask
from attnmix.data.transforms import evaluation_transform
from attnmix.data.voc import open_voc
from tests.data.conftest import save_image
from tests.fuzz.trying import attempt, fuzz, mangled, plain, with_other_values

TRANSFORM = evaluation_transform((3, 30, 40), mean=(0.5,) * 3, std=(0.5,) * 3)
XML = (
    b"<annotation><filename>0.jpg</filename><size><width>40</width><height>30</height></size>"
    b"<object><name>cat</name><bndbox><xmin>3</xmin><ymin>4</ymin><xmax>20</xmax><ymax>25</ymax></bndbox></object>"
    b"</annotation>"
)


@pytest.fixture
def images(tmp_path):
    save_image(tmp_path / "images/cat/0.jpg")
    return open_folder(tmp_path / "images", options={}, transform=TRANSFORM)


class Nameless:
    """An image without a file: its size is what the annotation declares."""

    def name_of(self, index):
        return "0.jpg"

    def __len__(self):
        return 1


# ------------------------------------------------------------------ XML


def laughs(word="x" * 1000):
    names = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
    return f'<!DOCTYPE a [<!ENTITY a0 "{word}">{names}]><a><size><height>&a9;</height></size></a>'


def outside(path):
    return f'<!DOCTYPE a [<!ENTITY leak SYSTEM "{path}">]><a><size><height>&leak;</height></size></a>'


HOSTILE_XML = {
    "laughs": laughs(),
    "one long laugh": f'<!DOCTYPE a [<!ENTITY q "{"1" * 100_000}">]><a>{"&q;" * 20_000}</a>',
    "a file": outside("file:///etc/secret"),
    "an address": outside("http://127.0.0.1:9/secret"),
    "a parameter": '<!DOCTYPE a [<!ENTITY % p SYSTEM "http://127.0.0.1:9/secret"> %p;]><a>&undefined;</a>',
    "a definition": '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/secret.dtd"><a><object/></a>',
    "unknown letters": '<?xml version="1.0" encoding="evil"?><a/>',  # was a LookupError
    "letters that are none": '<?xml version="1.0" encoding="zlib"?><a/>',
    "open elements": "<a>" * 50_000,
    "a size below zero": "<a><size><height>-4</height><width>-4</width></size></a>",
    "a size beyond all": "<a><size><height>1e300</height><width>1e300</width></size></a>",
    "digits": f"<a><size><height>{'9' * 9000}</height></size></a>",
}


@pytest.mark.parametrize("kind", HOSTILE_XML)
def test_hostile_xml(tmp_path, kind):
    (tmp_path / "0.xml").write_text(HOSTILE_XML[kind])
    _, message = attempt("annotations: hostile XML", lambda: read_xml(tmp_path / "0.xml"))
    assert "0.xml: malformed annotation (" in message


def test_damaged_xml(tmp_path, images):
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml/0.xml").write_bytes(XML)
    by_file, declared = (XmlTruth(tmp_path / "xml", data, TRANSFORM) for data in (images, Nameless()))
    words = st.sampled_from(["-1", "1e9", "1e300", "nan", "0x5", "999999999", "1000000", "0.5", " 7 ", "", "2"])
    places = st.sampled_from(["40", "30", "3", "4", "20", "25"])

    def exchanged(pairs):
        text = XML.decode()
        for old, new in pairs:
            text = text.replace(f">{old}<", f">{new}<")
        return text.encode()

    @fuzz(300)
    @given(data=st.one_of(mangled(XML), st.lists(st.tuples(places, words), min_size=1, max_size=3).map(exchanged)))
    def check(data):
        (tmp_path / "xml/0.xml").write_bytes(data)
        for truth in (by_file, declared):
            attempt("annotations: damaged XML", lambda: truth.boxes(torch.tensor([0])), names="0.xml")  # noqa: B023

    check()


# ------------------------------------------------------------------ COCO

RUNS = coco_mask.encode(np.asfortranarray(np.eye(30, 40, dtype=np.uint8)))["counts"].decode()
COCO = {
    "images": [{"id": 7, "file_name": "cat/0.jpg", "height": 30, "width": 40}],
    "annotations": [
        {"id": 1, "image_id": 7, "bbox": [4, 6, 10, 3], "segmentation": [[1, 1, 20, 1, 20, 20]]},
        {
            "id": 2,
            "image_id": 7,
            "bbox": [0, 0, 9.6, 2],
            "segmentation": {"size": [30, 40], "counts": [100, 1100]},
        },
        {"id": 3, "image_id": 7, "bbox": [1, 1, 5, 5], "segmentation": {"size": [30, 40], "counts": RUNS}},
        {"id": 4, "image_id": 7, "bbox": [1, 1, 5, 5], "iscrowd": 1},
    ],
}

# All but the last three ended the process, or gave a mask of whatever lay in the memory.
CRASHES = {
    "far corners": [[1, 1, 1e9, 1, 1e9, 1e9]],
    "farther": [[1, 1, 1e18, 1, 5, 5]],
    "below": [[-1e8, -1e8, 5, 5, 4, 4]],
    "no numbers": [[1, 1, float("nan"), 1, 5, 5]],
    "infinite": [[1, 1, float("inf"), 1, 5, 5]],
    "many corners": [[-30, -30, 60, 60] * 100_000],
    "huge runs": {"size": [10**6, 10**6], "counts": [0, 10]},
    "huge packed runs": {"size": [10**5, 10**5], "counts": "0P"},
    "few runs": {"size": [30, 40], "counts": [5]},
    "no runs": {"size": [30, 40], "counts": ""},
    "runs of no size": {"size": [0, 0], "counts": "0"},
    "runs of another size": {"size": [60, 80], "counts": [0, 4800]},
    "many runs": {"size": [30, 40], "counts": [0, 10**9]},
    "runs that never end": {"size": [30, 40], "counts": "o" * 1000},
}


@pytest.mark.parametrize("kind", CRASHES)
def test_segmentations_that_cannot_be(tmp_path, images, kind):
    entry = {"id": 1, "image_id": 7, "bbox": [1, 1, 5, 5], "segmentation": CRASHES[kind]}
    (tmp_path / "coco.json").write_text(json.dumps({**COCO, "annotations": [entry]}))
    truth = CocoTruth(tmp_path / "coco.json", images, TRANSFORM)
    message = attempt("annotations: hostile masks", lambda: truth.masks(torch.tensor([0])))[1]
    assert "annotation 1: its segmentation cannot be drawn" in message


@fuzz(120)
@given(rows=st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=2, max_size=40))
def test_runs_are_drawn_as_pycocotools_does(rows):
    drawn = np.array(rows, dtype=np.uint8)
    packed = coco_mask.encode(np.asfortranarray(drawn))
    found = segmentation_mask({"size": list(drawn.shape), "counts": packed["counts"].decode()}, drawn.shape)
    assert np.array_equal(found, drawn.astype(bool))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"images": ' + "[" * 100_000,
        '{"images": [], "annotations": ' + "9" * 5000 + "}",
        json.dumps({**COCO, "images": [{**COCO["images"][0], "height": 10**6, "width": 10**6}]}),
        json.dumps({**COCO, "images": [{**COCO["images"][0], "height": 2, "width": 10**7}]}),
        json.dumps({**COCO, "images": [{**COCO["images"][0], "height": float("inf")}]}),
        json.dumps({**COCO, "annotations": [{"id": 1, "image_id": 7, "bbox": [float("nan")] * 4}]}),
        "\ufeff{}",
    ],
)
def test_hostile_coco(tmp_path, images, text):
    (tmp_path / "coco.json").write_text(text)
    attempt_coco(tmp_path, images, "annotations: hostile COCO", refused=True)


def attempt_coco(tmp_path, images, kind, *, refused=False):
    def read():
        truth = open_annotations(tmp_path / "coco.json", images, TRANSFORM)
        return truth.masks(torch.tensor([0])), truth.boxes(torch.tensor([0]))

    found, message = attempt(kind, read)
    assert "coco.json" in message or found is not None
    if refused:
        assert found is None
    elif found is not None and found[0] is not None:
        assert found[0].shape == (1, 30, 40)
        assert set(found[0].unique().tolist()) <= {-1, 0, 1}


def test_coco_of_any_values(tmp_path, images):
    text = json.dumps(COCO).encode()

    @fuzz(350)
    @given(
        data=st.one_of(with_other_values(COCO, most=3).map(lambda told: json.dumps(told).encode()), mangled(text))
    )
    def check(data):
        (tmp_path / "coco.json").write_bytes(data)
        attempt_coco(tmp_path, images, "annotations: damaged COCO")

    check()


@fuzz(300)
@given(
    segmentation=st.one_of(
        plain,
        st.lists(st.lists(st.floats(-50, 90), min_size=4, max_size=12), min_size=1, max_size=3),
        st.fixed_dictionaries({"size": st.just([30, 40]), "counts": st.text("0123456789:PQRabo`no", max_size=30)}),
        st.fixed_dictionaries({"size": plain, "counts": plain}),
    )
)
def test_any_segmentation(segmentation):
    def draw():
        try:
            return segmentation_mask(segmentation, (30, 40))
        except Exception as error:  # its caller names the annotation
            raise ValueError(str(error) or type(error).__name__) from error

    found, _ = attempt("annotations: masks", draw, errors=(ValueError,))
    assert found is None or (found.shape == (30, 40) and found.dtype == bool)


# ------------------------------------------------------------------ VOC


@pytest.fixture
def voc(tmp_path):
    save_image(tmp_path / "voc/JPEGImages/a.jpg")
    (tmp_path / "voc/SegmentationClass").mkdir()
    (tmp_path / "voc/ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "voc/ImageSets/Segmentation/val.txt").write_text("a\n")
    mask = Image.fromarray(np.eye(30, 40, dtype=np.uint8)).convert("P")
    mask.save(tmp_path / "voc/SegmentationClass/a.png")
    return tmp_path / "voc"


def test_damaged_masks(voc):
    path = voc / "SegmentationClass/a.png"
    whole = path.read_bytes()
    _, truth = open_voc(voc, transform=TRANSFORM)
    bomb = bytearray(whole)
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2

    @fuzz(200)
    @given(data=st.one_of(mangled(whole), mangled(bytes(bomb)), st.binary(max_size=50)))
    def check(data):
        path.write_bytes(data)
        found, _ = attempt("annotations: mask files", lambda: truth.masks(torch.tensor([0])), names="a.png")
        assert found is None or found.shape == (1, 30, 40)

    check()


@pytest.mark.parametrize("name", ["../../images/cat/secret", "/etc/secret", "a/../../secret", "x\0"])
def test_a_list_that_leads_out(voc, name):
    (voc / "ImageSets/Segmentation/val.txt").write_text(f"a\n{name}\n")
    with pytest.raises(ValueError, match=r"val.txt' names .*, which is outside of its folder"):
        open_voc(voc, transform=TRANSFORM)


@fuzz(60)
@given(data=st.binary(max_size=30))
def test_lists_of_any_bytes(tmp_path, data):
    root = tmp_path / "voc"
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "ImageSets/Segmentation/val.txt").write_bytes(data)
    attempt("annotations: lists", lambda: open_voc(root, transform=TRANSFORM), names="val.txt")
