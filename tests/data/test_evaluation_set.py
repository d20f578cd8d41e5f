import logging

import pytest
import torch
from PIL import Image
from timm.data import create_transform

from attnmix.data import DigitsInScenes, create_datasets, create_evaluation_set
from tests.data.conftest import save_image, truncate

MODEL = {"input_size": (3, 48, 48), "mean": (0.5,) * 3, "std": (0.5,) * 3}


def test_scenes_are_those_of_training_runs_and_shown_whole():
    options = {"data_options": {"test_count": 20}}
    data, _ = create_evaluation_set("digits-in-scenes", **MODEL, crop_pct=0.9, **options)
    _, held_out = create_datasets("digits-in-scenes", **MODEL, eval_split="test", **options)
    assert isinstance(data, DigitsInScenes)
    assert data.split == "test"
    # crop_pct is of the exports of other data; nothing of a scene is cut off
    scenes, _ = create_evaluation_set("digits-in-scenes", **MODEL, **options)
    for index in range(3):
        assert torch.equal(scenes[index][0], held_out[index][0])
        assert torch.equal(data[index][0], held_out[index][0])


def test_a_folder_with_or_without_splits(make_folder):
    root = make_folder()
    whole, _ = create_evaluation_set(str(root), **MODEL)
    assert [name.split("/")[-3] for name in (whole.name_of(0), whole.name_of(5))] == ["val", "val"]
    bare, _ = create_evaluation_set(str(root / "train"), **MODEL)
    assert bare.class_names == ["cat", "dog"]
    assert bare.name_of(0).endswith("train/cat/0.jpg")
    other, _ = create_evaluation_set(str(root), **MODEL, split="train")
    assert other.name_of(0) == bare.name_of(0)
    with pytest.raises(FileNotFoundError, match="no split 'test'"):
        create_evaluation_set(str(root), **MODEL, split="test")


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_images_are_resized_as_timm_does_for_the_model(make_folder, crop_mode):
    root = make_folder()
    resizing = {"crop_pct": 0.75, "crop_mode": crop_mode, "interpolation": "bilinear"}
    data, transform = create_evaluation_set(str(root), **MODEL, **resizing)
    by_timm = create_transform((3, 48, 48), is_training=False, mean=(0.5,) * 3, std=(0.5,) * 3, **resizing)
    with Image.open(data.name_of(2)) as image:
        expected = by_timm(image.convert("RGB"))
        assert torch.equal(transform(image.convert("RGB")), expected)
    assert torch.equal(data[2][0], expected)


def test_a_crop_mode_that_timm_lacks(make_folder):
    with pytest.raises(ValueError, match="crop_mode 'centre'; did you mean 'center'"):
        create_evaluation_set(str(make_folder()), **MODEL, crop_mode="centre")


def test_an_unreadable_image_is_left_out_and_a_second_of_few_ends_it(make_folder, caplog):
    root = make_folder()
    truncate(root / "val/cat/1.jpg")
    data, _ = create_evaluation_set(str(root), **MODEL)
    with caplog.at_level(logging.WARNING):
        found = [data.read(index) for index in range(len(data))]
    assert [item is None for item in found] == [False, True, False, False, False, False]
    assert found[2][1] == 0
    assert data.unreadable == [str(root / "val/cat/1.jpg")]
    assert "it is left out" in caplog.text
    truncate(root / "val/dog/1.jpg")
    with pytest.raises(OSError, match=r"2 of 6 images cannot be read.*dog/1\.jpg"):
        data.read(4)


def test_one_percent_of_a_large_set_is_left_out(tmp_path):
    for index in range(300):
        save_image(tmp_path / "only" / f"{index:03}.png", (4, 4))
    for index in range(3):
        truncate(tmp_path / "only" / f"{index:03}.png")
    data, _ = create_evaluation_set(str(tmp_path), **MODEL)
    assert [data.read(index) for index in range(3)] == [None] * 3
    truncate(tmp_path / "only" / "003.png")
    with pytest.raises(OSError, match="4 of 300 images cannot be read, more than the 3 allowed"):
        data.read(3)


def test_sets_in_memory_can_always_be_read():
    data, _ = create_evaluation_set("digits-in-scenes", **MODEL, data_options={"test_count": 3})
    assert torch.equal(data.read(1)[0], data[1][0])
    assert data.name_of(1) == "image 1"


def test_unknown_data():
    with pytest.raises(ValueError, match="unknown data 'digits-in-scene'.*did you mean 'digits-in-scenes'"):
        create_evaluation_set("digits-in-scene", **MODEL)
    with pytest.raises(ValueError, match="data_options"):
        create_evaluation_set("digits-in-scenes", **MODEL, data_options={"sise": 3})
