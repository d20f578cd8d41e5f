import json

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask

from attnmix.data.annotations_coco import CocoTruth
from attnmix.data.folder import open_folder
from attnmix.data.transforms import evaluation_transform
from tests.data.conftest import save_image

SIZE = {"height": 30, "width": 40}


@pytest.fixture
def open_coco(tmp_path):
    """Images 0.jpg and 1.jpg of 40 x 30 pixels, seen as they are; a file that knows the first as image 7."""
    for number in (0, 1):
        save_image(tmp_path / f"images/cat/{number}.jpg")

    def make(*annotations, image=None, transform=None, **parts):
        entries = [{"id": 10 + number, "image_id": 7, **entry} for number, entry in enumerate(annotations)]
        content = {
            "images": [image or {"id": 7, "file_name": "cat/0.jpg", **SIZE}],
            "annotations": entries,
            **parts,
        }
        (tmp_path / "coco.json").write_text(json.dumps(content))
        transform = transform or evaluation_transform((3, 30, 40), mean=(0.5,) * 3, std=(0.5,) * 3)
        images = open_folder(tmp_path / "images", options={}, transform=transform)
        return CocoTruth(tmp_path / "coco.json", images, transform)

    return make


def rectangle(left, top, right, bottom):
    return [[left, top, right, top, right, bottom, left, bottom]]


def test_boxes_are_left_top_width_height_and_crowds_are_none(open_coco, capsys):
    truth = open_coco({"bbox": [4, 6, 10, 3]}, {"bbox": [0, 0, 9.6, 2]}, {"bbox": [1, 1, 5, 5], "iscrowd": 1})
    known, unknown = truth.boxes(torch.tensor([0, 1]))
    assert known.tolist() == [[6, 4, 3, 10], [0, 0, 2, 10]]
    assert unknown.shape == (0, 4)
    assert truth.masks(torch.tensor([0])) is None  # nothing has a segmentation
    assert capsys.readouterr().out == ""


def test_masks_join_polygons_and_run_lengths(open_coco):
    drawn = np.zeros((30, 40), np.uint8, order="F")
    drawn[20:28, 30:38] = 1
    packed = coco_mask.encode(drawn)
    counts = [int(c) for c in np.diff(np.flatnonzero(np.diff(np.concatenate([[0], drawn.ravel(order="F")]))))]
    start = int(np.flatnonzero(drawn.ravel(order="F"))[0])
    plain = {"size": [30, 40], "counts": [start, *counts, 1200 - start - sum(counts)]}
    wanted = torch.zeros(30, 40, dtype=torch.int8)
    wanted[5:12, 10:20] = 1
    wanted[20:28, 30:38] = 1
    for runs in (plain, {"size": [30, 40], "counts": packed["counts"].decode()}):
        truth = open_coco(
            {"bbox": [10, 5, 10, 7], "segmentation": rectangle(10, 5, 20, 12)},
            {"bbox": [30, 20, 8, 8], "segmentation": runs},
        )
        masks = truth.masks(torch.tensor([0, 1]))
        assert torch.equal(masks[0], wanted)
        assert (masks[1] == -1).all()  # the file does not know the second image


def test_crowds_and_objects_known_by_their_box_are_not_counted_but_for_objects_on_them(open_coco):
    truth = open_coco(
        {"bbox": [0, 0, 10, 10], "segmentation": rectangle(0, 0, 10, 10), "iscrowd": 1},
        {"bbox": [5, 0, 10, 10], "segmentation": rectangle(5, 0, 15, 10)},
        {"bbox": [30, 25, 4, 2]},
    )
    wanted = torch.zeros(30, 40, dtype=torch.int8)
    wanted[:10, :5] = wanted[25:27, 30:34] = -1
    wanted[:10, 5:15] = 1
    assert torch.equal(truth.masks(torch.tensor([0]))[0], wanted)


def test_masks_and_boxes_of_another_size_are_scaled(open_coco):
    entry = {"bbox": [20, 10, 40, 30], "segmentation": rectangle(20, 10, 60, 40)}
    truth = open_coco(entry, image={"id": 7, "file_name": "0.jpg", "height": 60, "width": 80})
    wanted = torch.zeros(30, 40, dtype=torch.int8)
    wanted[5:20, 10:30] = 1
    assert torch.equal(truth.masks(torch.tensor([0]))[0], wanted)
    assert truth.boxes(torch.tensor([0]))[0].tolist() == [[5, 10, 15, 20]]


def test_masks_are_cropped_as_the_image_is(open_coco):
    transform = evaluation_transform((3, 30, 30), mean=(0.5,) * 3, std=(0.5,) * 3)  # columns 5 to 35
    truth = open_coco({"bbox": [0, 3, 9, 4], "segmentation": rectangle(0, 3, 9, 7)}, transform=transform)
    wanted = torch.zeros(30, 30, dtype=torch.int8)
    wanted[3:7, :4] = 1
    assert torch.equal(truth.masks(torch.tensor([0]))[0], wanted)
    assert truth.boxes(torch.tensor([0]))[0].tolist() == [[3, 0, 4, 4]]


def test_malformed_files_and_annotations_are_named(open_coco, tmp_path):
    with pytest.raises(ValueError, match=r"coco\.json: annotation 10: bbox \[1, 2\]; expected \[left, top"):
        open_coco({"bbox": [1, 2]}).boxes(torch.tensor([0]))
    broken = open_coco({"bbox": [1, 2, 3, 4], "segmentation": {"size": [30, 40], "counts": 3.5}})
    with pytest.raises(ValueError, match=r"annotation 10: its segmentation cannot be drawn"):
        broken.masks(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"coco\.json: image 7 needs a height and a width: 'height'"):
        open_coco({"bbox": [1, 2, 3, 4]}, image={"id": 7, "file_name": "0.jpg"}).boxes(torch.tensor([0]))
    flat = open_coco({"bbox": [1, 2, 3, 4]}, image={"id": 7, "file_name": "0.jpg", "height": 0, "width": 3})
    with pytest.raises(ValueError, match=r"image 7 of height 0 and width 3"):
        flat.boxes(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"coco\.json: an image without 'file_name'"):
        open_coco(image={"id": 7, **SIZE})
    with pytest.raises(ValueError, match=r"coco\.json: not in COCO's form: KeyError: 'image_id'"):
        open_coco(annotations=[{"id": 1}])
    for text, message in (
        ("{", "JSONDecodeError"),
        ("[]", "AssertionError"),
        ('{"images": []}', "no 'annotations'"),
    ):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match=rf"other\.json: not in COCO's form: {message}"):
            CocoTruth(tmp_path / "other.json", None, evaluation_transform((3, 8, 8), mean=(0,) * 3, std=(1,) * 3))
