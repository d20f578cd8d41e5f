import dataclasses
import inspect
import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from attnmix.data.posterize import _operations
from attnmix.data.transforms import AUGMENT_KEYS, create_transforms, evaluation_options
from attnmix.training.recipe import Augment
from tests.data.conftest import save_image

HALF = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
MILD = {"scale": (0.9, 1.0), "hflip": 0.0, "color_jitter": None, "interpolation": "bilinear"}


@pytest.fixture
def image(tmp_path) -> Image.Image:
    save_image(tmp_path / "image.png", (60, 40))
    return Image.open(tmp_path / "image.png").resize((150, 100), Image.Resampling.BICUBIC)


def train(image: Image.Image, size=(3, 32, 32), **augment) -> torch.Tensor:
    random.seed(3)  # timm draws from all three global generators
    np.random.seed(3)
    torch.manual_seed(3)
    return create_transforms(size, **HALF, augment=augment)[0](image)


def test_an_image_of_the_right_size_is_only_normalised():
    pixels = torch.randint(256, (48, 48, 3), dtype=torch.uint8)
    for transform in create_transforms((3, 48, 48), **HALF, augment={"no_aug": True}, whole_image=True):
        expected = (pixels.permute(2, 0, 1) / 255 - 0.5) / 0.25
        torch.testing.assert_close(transform(Image.fromarray(pixels.numpy())), expected)


def test_the_whole_image_is_seen_where_asked_even_by_a_model_that_is_not_square():
    # Bright corners survive; centre crops would lose them.
    pixels = torch.zeros(48, 48, 3, dtype=torch.uint8)
    pixels[:6, :6] = pixels[-6:, -6:] = 255
    seen = create_transforms((3, 32, 64), **HALF, whole_image=True)[1](Image.fromarray(pixels.numpy()))
    assert seen.shape == (3, 32, 64)
    assert seen[:, 0, 0].min() > 1.5
    assert seen[:, -1, -1].min() > 1.5


def test_crop_pct_follows_the_size_and_can_be_set(image):
    def crop(side, **augment):
        return create_transforms((3, side, side), **HALF, augment=augment)[1](image)

    assert torch.equal(crop(64), crop(64, crop_pct=1.0))
    assert torch.equal(crop(224), crop(224, crop_pct=0.875))
    assert not torch.equal(crop(224), crop(224, crop_pct=1.0))


def test_no_aug_trains_on_what_evaluation_sees(image):
    training, evaluation = create_transforms((3, 32, 48), **HALF, augment={"no_aug": True, "hflip": 1.0})
    assert torch.equal(training(image), evaluation(image))


def test_random_interpolation_is_for_training_only(image):
    drawn, bicubic = (
        create_transforms((3, 32, 32), **HALF, augment={"interpolation": name})[1]
        for name in ("random", "bicubic")
    )
    assert torch.equal(drawn(image), bicubic(image))


def test_none_is_timms_default_and_no_jitter(image):
    assert torch.equal(train(image, hflip=None, crop_pct=None, color_jitter=0.4), train(image))
    assert torch.equal(train(image, color_jitter=None), train(image, color_jitter=0.0))
    assert not torch.equal(train(image, color_jitter=None), train(image))


def test_grey_models(image):
    for transform in create_transforms((1, 32, 32), mean=(0.5,), std=(0.5,)):
        assert transform(image).shape == (1, 32, 32)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_aug", True),
        ("scale", [0.1, 0.2]),
        ("ratio", [2, 3]),
        ("hflip", 1.0),
        ("vflip", 1.0),
        ("color_jitter", 0.4),
        ("auto_augment", "rand-m9-n2"),
        ("auto_augment", "3a"),
        ("re_prob", 1.0),
        ("interpolation", "nearest"),
    ],
)
def test_every_key_shows_an_effect_on_training(image, key, value):
    assert not torch.equal(train(image, **MILD), train(image, **{**MILD, key: value}))


def test_keys_of_other_keys_show_an_effect(image):
    erased = {**MILD, "re_prob": 1.0}
    assert not torch.equal(train(image, **erased), train(image, **erased, re_mode="pixel"))


@pytest.mark.parametrize(("key", "value"), [("crop_pct", 0.5), ("interpolation", "nearest")])
def test_keys_that_reach_evaluation(image, key, value):
    default, changed = (create_transforms((3, 32, 32), **HALF, augment=a)[1](image) for a in ({}, {key: value}))
    assert not torch.equal(default, changed)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({"hfilp": 0.5}, r"unknown augment key 'hfilp'; did you mean 'hflip'\?; known: auto_augment, "),
        (
            {"interpolation": "bicubc"},
            r"augment interpolation 'bicubc'; did you mean 'bicubic'\?; known: bicubic",
        ),
        ({"re_mode": "x"}, "augment re_mode 'x'; known: const, rand, pixel"),
        ({"hflip": 1.5}, "augment hflip 1.5: expected a probability"),
        ({"re_prob": "often"}, "augment re_prob 'often': expected a probability"),
        ({"crop_pct": 0}, "augment crop_pct 0: expected a share"),
        ({"scale": 0.5}, r"augment scale 0.5: expected \(smallest, largest\)"),
        ({"ratio": [2, 1]}, r"augment ratio \[2, 1\]: expected \(smallest, largest\)"),
        ({"auto_augment": "nonsense"}, "timm cannot make a transform of augment .*nonsense"),
        ({"color_jitter": "x"}, "timm cannot make a transform of augment .*'color_jitter': 'x'"),
    ],
)
def test_bad_augment_is_named(augment, message):
    with pytest.raises(ValueError, match=message):
        create_transforms((3, 32, 32), **HALF, augment=augment)


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match=r"input_size \(4, 32, 32\): expected \(channels, height, width\)"):
        create_transforms((4, 32, 32), **HALF)
    with pytest.raises(ValueError, match=r"mean \(0.5,\): expected one value for each of 3 channels"):
        create_transforms((3, 32, 32), mean=(0.5,), std=(0.5,) * 3)


def test_known_keys_are_those_of_a_recipe():
    assert {field.name for field in dataclasses.fields(Augment)} == AUGMENT_KEYS


@pytest.mark.parametrize("whole_image", [False, True])
def test_a_recipes_defaults_leave_flip_and_crop_to_the_data(whole_image):
    defaults = dataclasses.asdict(Augment())
    transforms = create_transforms((3, 224, 224), **HALF, augment=defaults, whole_image=whole_image)
    assert ("Flip" in str(transforms[0])) == (not whole_image)
    options = evaluation_options((3, 224, 224), augment=defaults, whole_image=whole_image)
    assert (options["crop_pct"], options["crop_mode"]) == ((1.0, "squash") if whole_image else (0.875, "center"))
    assert evaluation_options((3, 32, 32), augment=defaults)["crop_pct"] == 1.0


def test_every_known_key_is_one_of_timms():
    assert set(inspect.signature(create_transform).parameters) >= AUGMENT_KEYS


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "original", "v0"])
def test_no_strength_of_posterize_asks_pillow_for_no_bits(policy):
    training, _ = create_transforms(
        (3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3, augment={"auto_augment": policy, "hflip": 0.5}
    )
    operations = [op for op in _operations(training) if op.name.startswith("Posterize")]
    image = Image.new("RGB", (8, 8), (200, 100, 50))
    for op in operations:
        op.prob = 1.0
        for magnitude in (0, 1, 9, 10):
            op.magnitude, op.magnitude_std = magnitude, 0
            assert max(op(image).getpixel((0, 0))) >= 128  # the highest bit is left
    assert operations
