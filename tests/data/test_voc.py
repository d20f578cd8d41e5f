import logging
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from attnmix.data.transforms import evaluation_transform
from attnmix.data.voc import open_voc
from tests.data.conftest import save_image, truncate


def transform(side: int = 30):
    return evaluation_transform((3, side, side), mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture
def root(tmp_path):
    """Two of three images of 40 x 30 pixels are in val; columns 10 to 20 are object 3, column 20 is void."""
    classes = np.zeros((30, 40), np.uint8)
    classes[:, 10:20], classes[:, 20] = 3, 255
    mask = Image.fromarray(classes).convert("P")
    mask.putdata(classes.ravel().tolist())
    (tmp_path / "SegmentationClass").mkdir()
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    for name in ("a", "b", "c"):
        save_image(tmp_path / f"JPEGImages/{name}.jpg")
        mask.save(tmp_path / f"SegmentationClass/{name}.png")
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("a\nc\n\n")
    (tmp_path / "ImageSets/Segmentation/train.txt").write_text("b\n")
    return tmp_path


def test_images_and_masks_of_a_split(root):
    assert Image.open(root / "SegmentationClass/a.png").mode == "P"
    images, truth = open_voc(root, transform=transform())
    assert images.class_names == ["object"]
    assert [images.name_of(index) for index in range(len(images))] == [
        str(root / f"JPEGImages/{name}.jpg") for name in "ac"
    ]
    assert images[1][0].shape == (3, 30, 30)
    assert images[1][1] == 0
    wanted = torch.zeros(2, 30, 30, dtype=torch.int8)
    wanted[:, :, 5:15] = 1  # the crop shows columns 5 to 35
    wanted[:, :, 15] = -1
    assert torch.equal(truth.masks(torch.tensor([0, 1])), wanted)
    assert [len(rows) for rows in truth.boxes(torch.tensor([0, 1]))] == [0, 0]
    assert len(open_voc(str(root), "train", transform=transform())[0]) == 1


def test_one_unreadable_image_is_left_out(root, caplog):
    truncate(root / "JPEGImages/a.jpg")
    images, _ = open_voc(root, transform=transform())
    with caplog.at_level(logging.WARNING):
        assert images.read(0) is None
    assert images.unreadable == [str(root / "JPEGImages/a.jpg")]
    truncate(root / "JPEGImages/c.jpg")
    with pytest.raises(OSError, match="2 of 2 images cannot be read, more than the 1 allowed"):
        images.read(1)


def test_what_is_missing_is_named_with_the_layout(root):
    with pytest.raises(FileNotFoundError, match=r"no split 'test': no file .*test.txt' \(splits: train, val\)"):
        open_voc(root, "test", transform=transform())
    (root / "ImageSets/Segmentation/empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"empty.txt' names no image; expected JPEGImages"):
        open_voc(root, "empty", transform=transform())
    (root / "SegmentationClass/c.png").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"1 of the 2 files that val.txt names are not in '.*SegmentationClass', the first 'c",
    ):
        open_voc(root, transform=transform())
    shutil.rmtree(root / "SegmentationClass")
    with pytest.raises(FileNotFoundError, match=r"no folder '.*SegmentationClass'; expected JPEGImages/\*.jpg"):
        open_voc(root, transform=transform())
    with pytest.raises(FileNotFoundError, match=r"no folder '.*nowhere'; expected"):
        open_voc(root / "nowhere", transform=transform())


def test_files_that_are_no_masks_are_named(root):
    _, truth = open_voc(root, transform=transform())
    save_image(root / "SegmentationClass/a.png")
    with pytest.raises(ValueError, match=r"a\.png: a mask in colour; expected a palette"):
        truth.masks(torch.tensor([0]))
    (root / "SegmentationClass/c.png").write_text("nothing")
    with pytest.raises(ValueError, match=r"c\.png: the mask cannot be read"):
        truth.masks(torch.tensor([1]))
