import pytest
import torch

from attnmix.data.annotations_xml import XmlTruth, read_xml
from attnmix.data.folder import open_folder
from attnmix.data.transforms import evaluation_transform
from tests.data.conftest import save_image

OBJECT = (
    "<object><name>cat</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"
    "<part><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"
)


def write(path, *boxes, size=None):
    declared = "<size><width>{}</width><height>{}</height></size>".format(*size) if size else ""
    objects = "".join(OBJECT.format(*box) for box in boxes)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"<annotation><filename>x</filename>{declared}{objects}</annotation>")


@pytest.fixture
def truth(tmp_path):
    """Two images of 40 x 30 pixels, seen as they are; the second has no XML."""
    for number in (0, 1):
        save_image(tmp_path / f"images/cat/{number}.jpg")
    transform = evaluation_transform((3, 30, 40), mean=(0.5,) * 3, std=(0.5,) * 3)

    def make(*boxes, size=None):
        write(tmp_path / "xml/0.xml", *boxes, size=size)
        images = open_folder(tmp_path / "images", options={}, transform=transform)
        return XmlTruth(tmp_path / "xml", images, transform)

    return make


def test_corners_count_from_one_and_belong_to_the_box(truth):
    found = truth((1, 1, 40, 30), (11, 6, 11, 10), size=(40, 30)).boxes(torch.tensor([1, 0]))
    assert found[0].shape == (0, 4)  # no file
    assert found[1].tolist() == [[0, 0, 30, 40], [5, 10, 5, 1]]
    assert found[1].dtype == torch.int64


def test_coordinates_for_another_size_are_scaled_unless_there_is_none(truth):
    box = (21, 11, 60, 40)  # columns 20 to 60, rows 10 to 40 of 80 x 60
    assert truth(box, size=(80, 60)).boxes(torch.tensor([0]))[0].tolist() == [[5, 10, 15, 20]]
    for size in (None, (0, 0)):
        assert truth(box, size=size).boxes(torch.tensor([0]))[0].tolist() == [[10, 20, 20, 20]]


def test_no_object_is_no_box_and_masks_are_not_known(truth):
    found = truth(size=(40, 30))
    assert found.boxes(torch.tensor([0]))[0].shape == (0, 4)
    assert found.masks(torch.tensor([0])) is None


def test_a_file_is_read_only_when_its_image_is_asked_for(truth, tmp_path):
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml/1.xml").write_text("<annotation>")
    found = truth((1, 1, 4, 4))
    assert len(found.boxes(torch.tensor([0]))[0]) == 1
    with pytest.raises(
        ValueError, match=r"1\.xml: malformed annotation \(no element found.*expected object/bndbox"
    ):
        found.boxes(torch.tensor([1]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "syntax error"),
        ("<a><object></object></a>", "no bndbox in object"),
        ("<a><object><bndbox><xmin>1</xmin></bndbox></object></a>", "ymin of bndbox is None, no number"),
        ("<a><size><height>tall</height></size></a>", "height of a is 'tall', no number"),
        ("<a>" + OBJECT.format(5, 1, 4, 9) + "</a>", "xmin 5 to xmax 4, ymin 1 to ymax 9"),
        ("<a>" + OBJECT.format("nan", 1, 4, 9) + "</a>", "xmin of bndbox is 'nan', no number"),
    ],
)
def test_malformed_files_are_named(tmp_path, text, message):
    (tmp_path / "bad.xml").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.xml: malformed annotation \(.*{message}"):
        read_xml(tmp_path / "bad.xml")


def test_external_entities_are_not_read(tmp_path):
    (tmp_path / "secret.txt").write_text("7")
    (tmp_path / "bad.xml").write_text(
        f'<!DOCTYPE a [<!ENTITY leak SYSTEM "{tmp_path}/secret.txt">]><a><size><height>&leak;</height></size></a>'
    )
    with pytest.raises(ValueError, match="malformed annotation"):
        read_xml(tmp_path / "bad.xml")


def test_an_image_without_a_file_needs_a_declared_size(tmp_path):
    class Named:
        def name_of(self, index):
            return "0.jpg"

        def __len__(self):
            return 1

    transform = evaluation_transform((3, 15, 20), mean=(0.5,) * 3, std=(0.5,) * 3)
    write(tmp_path / "xml/0.xml", (11, 11, 20, 20), size=(40, 30))
    truth = XmlTruth(tmp_path / "xml", Named(), transform)
    assert truth.boxes(torch.tensor([0]))[0].tolist() == [[5, 5, 5, 5]]
    write(tmp_path / "xml/0.xml", (11, 11, 20, 20))
    with pytest.raises(ValueError, match=r"0\.xml: no size above 0, nor an image file '0.jpg'"):
        truth.boxes(torch.tensor([0]))
