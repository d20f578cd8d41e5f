import logging

import pytest
import torch
from PIL import Image

from attnmix.data import Digits, DigitsInScenes, create_datasets, known_data
from tests.data.conftest import save_image, truncate

MODEL = {"input_size": (3, 48, 48), "mean": (0.5,) * 3, "std": (0.5,) * 3}
SMALL = {"train_count": 40, "test_count": 30}


def scenes(*, data_options=None, **options):
    return create_datasets("digits-in-scenes", **MODEL, data_options={**SMALL, **(data_options or {})}, **options)


def test_scenes_come_as_drawn_and_normalised():
    train, held_out = scenes(train_split="train-fit")
    assert isinstance(train, DigitsInScenes)
    assert (train.split, held_out.split) == ("train-fit", "validation")
    assert (len(train), len(held_out)) == (40, 30)
    for data in (train, held_out):
        image, label = data[4]
        torch.testing.assert_close(image, (data.images[4] / 255 - 0.5) / 0.5)
        assert (label, data.num_classes) == (int(data.labels[4]), 10)


def test_an_image_of_the_input_size_is_not_resampled(monkeypatch):
    train, held_out = scenes()

    def resize(self, *args, **options):
        raise AssertionError("resampled")

    monkeypatch.setattr(Image.Image, "resize", resize)
    assert train[3][0].shape == held_out[3][0].shape == (3, 48, 48)


def test_what_is_a_streams_option_is_none_of_a_folders(make_folder):
    with pytest.raises(ValueError, match="batch_size"):
        create_datasets(str(make_folder()), **MODEL, data_options={"batch_size": 3}, batch_size=3)


def test_data_options_reach_the_scenes():
    larger, _ = scenes(data_options={"scale": [0.9, 1.0]})
    smaller, _ = scenes(data_options={"scale": [0.4, 0.5]})
    assert larger.masks.sum() > 2 * smaller.masks.sum()
    assert scenes(data_options={"size": 32})[0][0][0].shape == (3, 48, 48)
    assert scenes(data_options={"size": 32})[0].images.shape[-1] == 32
    assert (
        create_datasets("digits_in_scenes", **{**MODEL, "input_size": (3, 32, 32)}, data_options=SMALL)[
            0
        ].images.shape[-1]
        == 32
    )


def test_augment_reaches_training_only():
    train, held_out = scenes(augment={"scale": [0.3, 0.5]})
    assert not torch.equal(train[0][0], (train.images[0] / 255 - 0.5) / 0.5)
    torch.testing.assert_close(held_out[0][0], (held_out.images[0] / 255 - 0.5) / 0.5)


def test_validation_that_shares_originals_with_training_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        scenes(train_split="train", eval_split="test")
        scenes(train_split="train-fit", eval_split="validation")
        assert not caplog.records
        scenes()
    assert "validation shares its originals with train" in caplog.text


def test_raw_digits():
    train, held_out = create_datasets("digits", **MODEL, train_split="train", eval_split="test")
    assert isinstance(train, Digits)
    assert (len(train), len(held_out)) == (1000, 797)
    assert train[0][0].shape == (3, 48, 48)


def test_a_folder_of_mixed_and_damaged_images(make_folder):
    root = make_folder(per_class=4)
    truncate(root / "train/cat/2.jpg")
    truncate(root / "val/dog/3.jpg")
    train, held_out = create_datasets(str(root), **MODEL)
    for data in (train, held_out):
        assert (data.class_names, data.num_classes, len(data)) == (["cat", "dog"], 2, 8)
        batch = torch.utils.data.default_collate([data[index] for index in range(8)])
        assert batch[0].shape == (8, 3, 48, 48)
    assert train.unreadable == [str(root / "train/cat/2.jpg")]
    assert held_out.unreadable == [str(root / "val/dog/3.jpg")]


def test_a_folder_whose_splits_differ_in_classes(make_folder):
    root = make_folder()
    save_image(root / "train/fox/0.jpg")
    with pytest.raises(ValueError, match="only the training split has fox; only the evaluation split has none"):
        create_datasets(str(root), **MODEL)


def test_the_split_of_a_folder_can_be_chosen(make_folder):
    root = make_folder()
    save_image(root / "extra/cat/0.jpg")
    save_image(root / "extra/dog/0.jpg")
    assert len(create_datasets(str(root), **MODEL, eval_split="extra")[1]) == 2


def test_timm_names_go_to_timm():
    with pytest.raises(ValueError, match="'torch/cifar10' needs data_options root"):
        create_datasets("torch/cifar10", **MODEL)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "digits-in-scene",
            {},
            ValueError,
            r"unknown data 'digits-in-scene'.*did you mean 'digits-in-scenes'\?; known: ",
        ),
        (
            "imagenet",
            {},
            ValueError,
            r"unknown data 'imagenet'.*known: digits-in-scenes, digits, FOLDER, torch/NAME",
        ),
        ("./nowhere", {}, FileNotFoundError, r"no folder './nowhere'.*known: digits-in-scenes"),
        (
            "digits",
            {"train_split": "trian"},
            ValueError,
            r"unknown split 'trian'; did you mean 'train'\?; known: train",
        ),
        (
            "digits",
            {"data_options": {"size": 9}},
            ValueError,
            r"data_options \(digits\) key 'size'; none are known here",
        ),
        (
            "digits-in-scenes",
            {"data_options": {"scael": 1}},
            ValueError,
            r"key 'scael'; did you mean 'scale'\?; known: ",
        ),
        (
            "digits-in-scenes",
            {"data_options": {"split": "test"}},
            ValueError,
            "unknown data_options .* key 'split'",
        ),
        (
            "digits",
            {"augment": {"hfilp": 1}},
            ValueError,
            r"unknown augment key 'hfilp'; did you mean 'hflip'\?",
        ),
    ],
)
def test_errors_name_the_value(name, options, error, message):
    with pytest.raises(error, match=message):
        create_datasets(name, **MODEL, **options)


def test_unknown_options_of_a_folder(make_folder):
    with pytest.raises(ValueError, match=r"unknown data_options key 'clas_map'; did you mean 'class_map'\?"):
        create_datasets(str(make_folder()), **MODEL, data_options={"clas_map": "x"})


def test_known_data_tells_every_form():
    known = known_data()
    assert {"digits-in-scenes", "digits", "FOLDER", "torch/NAME", "hfds/NAME", "wds/NAME"} <= set(known)
    assert all(line and "\n" not in line for line in known.values())
