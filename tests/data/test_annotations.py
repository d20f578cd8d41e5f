import json

import numpy as np
import pytest
import torch
from PIL import Image

from attnmix.data import Digits, DigitsInScenes, LabelledImages
from attnmix.data.annotation_index import AnnotationIndex, original_size
from attnmix.data.annotations import EmbeddedTruth, open_annotations
from attnmix.data.annotations_coco import CocoTruth
from attnmix.data.annotations_xml import XmlTruth
from attnmix.data.folder import open_folder
from attnmix.data.labelled import StreamedImages
from attnmix.data.transforms import evaluation_transform
from tests.data.conftest import save_image

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def whole(side: int):
    return evaluation_transform((3, side, side), **PLAIN, crop_mode="squash")


def test_embedded_masks_and_boxes_are_the_sets_own_at_its_own_size():
    data = DigitsInScenes("test", test_count=6)
    truth = EmbeddedTruth(data, whole(48))
    index = torch.tensor([4, 0])
    assert torch.equal(truth.masks(index), data.masks[index].to(torch.int8))
    assert torch.equal(torch.cat(truth.boxes(index)), data.boxes[index])


def test_embedded_masks_and_boxes_are_stretched_as_the_images_are():
    data = DigitsInScenes("test", test_count=5)
    truth = EmbeddedTruth(data, evaluation_transform((3, 96, 144), **PLAIN, crop_mode="squash"))
    index = torch.arange(5)
    stretched = data.masks.repeat_interleave(2, 1).repeat_interleave(3, 2)
    assert torch.equal(truth.masks(index), stretched.to(torch.int8))
    assert torch.equal(torch.cat(truth.boxes(index)), data.boxes * torch.tensor([2, 3, 2, 3]))


def test_sets_without_masks_are_named():
    with pytest.raises(ValueError, match="Digits has no masks: it does not know where"):
        EmbeddedTruth(Digits("test"), whole(48))


def test_an_annotation_goes_by_the_last_part_of_the_name_and_then_by_folders():
    index = AnnotationIndex([("a/1.xml", "a"), ("b/1.xml", "b"), ("2.xml", "two")], suffix=False)
    assert len(index) == 3
    assert index.find("/data/b/1.jpg") == "b"
    assert index.find("/elsewhere/2.JPEG") == "two"
    assert index.find("/data/b/3.jpg") is None
    with pytest.raises(ValueError, match="/data/c/1.jpg: 'a/1.xml' or 'b/1.xml' could be its annotation"):
        index.find("/data/c/1.jpg")
    assert AnnotationIndex([("1.png", 0)], suffix=True).find("1.jpg") is None


def test_the_original_size_is_the_files_else_what_is_declared(tmp_path):
    save_image(tmp_path / "1.jpg", (40, 30))
    (tmp_path / "2.jpg").write_text("no image")
    assert original_size(str(tmp_path / "1.jpg"), (7, 7)) == (30, 40)
    assert original_size(str(tmp_path / "2.jpg"), (7, 8)) == (7, 8)
    assert original_size("sample 3", (7, 8)) == (7, 8)


@pytest.fixture
def folder(tmp_path):
    """Two images of 40 x 30 pixels."""
    for name in ("cat/0.jpg", "dog/1.jpg"):
        save_image(tmp_path / "images" / name)
    return tmp_path


def images_of(folder, side: int = 40):
    return open_folder(folder / "images", options={}, transform=whole(side))


def test_folders_and_json_files_are_opened_and_others_refused(folder):
    images = images_of(folder)
    (folder / "xml/deep").mkdir(parents=True)
    (folder / "xml/deep/0.xml").write_text("<annotation></annotation>")
    assert isinstance(open_annotations(str(folder / "xml"), images, whole(40)), XmlTruth)
    known = [{"id": 5, "file_name": "1.jpg", "height": 30, "width": 40}]
    (folder / "boxes.json").write_text(json.dumps({"images": known, "annotations": []}))
    assert isinstance(open_annotations(folder / "boxes.json", images, whole(40)), CocoTruth)
    with pytest.raises(FileNotFoundError, match=r"no annotations '.*nowhere'; expected a folder of ImageNet"):
        open_annotations(folder / "nowhere", images, whole(40))
    (folder / "boxes.csv").write_text("")
    with pytest.raises(ValueError, match=r"annotations '.*boxes.csv'; expected .* or a COCO .json file"):
        open_annotations(folder / "boxes.csv", images, whole(40))


def test_annotations_of_other_images_are_refused(folder):
    images = images_of(folder)
    (folder / "xml").mkdir()
    (folder / "xml/7.xml").write_text("<annotation/>")
    with pytest.raises(
        ValueError, match=r"none of the 2 images has an annotation in the folder '.*xml', which holds 1: .*0\.jpg"
    ):
        open_annotations(folder / "xml", images, whole(40))
    (folder / "a.json").write_text(json.dumps({"images": [], "annotations": []}))
    with pytest.raises(ValueError, match=r"in the file '.*a.json', which holds 0: looked for a file name '0.jpg'"):
        open_annotations(folder / "a.json", images, whole(40))
    with pytest.raises(ValueError, match="the images are a stream, without file names"):
        open_annotations(folder / "xml", StreamedImages([], class_names=["a"]), whole(40))


def test_an_image_is_seen_where_its_box_is(folder):
    """From JPEG and annotation to the model's pixels: bright pixels and the box agree, in all crop modes."""
    pixels = np.zeros((90, 160, 3), np.uint8)
    pixels[20:70, 60:100] = 255
    Image.fromarray(pixels).save(folder / "images/cat/0.jpg", quality=95)
    (folder / "0.xml").write_text(
        "<annotation><object><bndbox><xmin>61</xmin><ymin>21</ymin><xmax>100</xmax><ymax>70</ymax></bndbox></object>"
        "</annotation>"
    )
    for mode in ("center", "squash", "border"):
        transform = evaluation_transform((3, 64, 64), **PLAIN, crop_mode=mode)
        images = open_folder(folder / "images", options={}, transform=transform)
        bright = images[0][0].mean(dim=0) > 0.5
        rows, columns = bright.any(dim=1).nonzero(), bright.any(dim=0).nonzero()
        top, left, height, width = (
            open_annotations(folder, images, transform).boxes(torch.tensor([0]))[0][0].tolist()
        )
        assert abs(top - rows.min()) <= 1
        assert abs(left - columns.min()) <= 1
        assert abs(top + height - 1 - rows.max()) <= 1
        assert abs(left + width - 1 - columns.max()) <= 1


class Named(LabelledImages):
    class_names = ("a",)

    def __init__(self, *names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def name_of(self, index):
        return self.names[index]


def test_an_image_that_shares_its_name_gets_no_other_ones_annotation():
    index = AnnotationIndex([("ann/cat/1.xml", "cat"), ("ann/bird/1.xml", "bird")], suffix=False)
    index.check(Named("val/cat/1.jpg", "val/dog/1.jpg", "val/bird/1.jpg"), "ann")
    assert [index.find(f"val/{name}/1.jpg") for name in ("cat", "dog", "bird")] == ["cat", None, "bird"]
    alone = AnnotationIndex([("ann/cat/1.xml", "cat")], suffix=False)
    alone.check(Named("val/cat/1.jpg", "val/dog/1.jpg"), "ann")
    assert [alone.find(f"val/{name}/1.jpg") for name in ("cat", "dog")] == ["cat", None]


def test_imagenet_with_the_class_in_its_file_names_finds_its_annotations():
    index = AnnotationIndex([("xml/ILSVRC2012_val_00000001.xml", "first")], suffix=False)
    assert index.find("val/n01440764/ILSVRC2012_val_00000001_n01440764.JPEG") == "first"
