"""A picture of coordinates goes through the transform: the map of the same coordinates has to follow it."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import NAME_TO_OP, AugmentOp, AutoAugment, RandAugment
from torchvision import transforms
from torchvision.ops import roi_align

from attnmix.data.geometry import FollowedTransform, resample
from attnmix.data.transforms import create_transforms, evaluation_transform

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
PLAIN = {"color_jitter": 0.0, "interpolation": "bilinear"}


def coordinates(width, height):
    """Red is how far right a pixel is, green how far down; blue says that there is a picture at all."""
    x = (np.arange(width) + 0.5) / width
    y = (np.arange(height) + 0.5) / height
    planes = np.stack(np.broadcast_arrays(x[None, :], y[:, None], 1.0), axis=-1)
    return Image.fromarray((255 * planes).round().astype(np.uint8))


def coordinate_maps(height, width):
    """The same on a grid: `[3, h, w]`."""
    x = (torch.arange(width) + 0.5) / width
    y = (torch.arange(height) + 0.5) / height
    return torch.stack([x.expand(height, width), y[:, None].expand(height, width), torch.ones(height, width)])


def seeded(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def by_cells(pixels, size):
    """The mean of the transformed picture in every cell, of normalised pixels: `[3, h, w]`."""
    return torch.nn.functional.adaptive_avg_pool2d(pixels * 0.5 + 0.5, size)


def largest_difference(transform, image, *, size=(6, 6), fine=32, seed=0, inner=False):
    """Between what a picture of places shows and what the map says, where both see the picture."""
    seeded(seed)
    pixels, stages = FollowedTransform(transform)(image)
    expected = by_cells(pixels, size)
    found = resample(coordinate_maps(fine, fine), stages, size)
    whole = (found[2] > 0.999) & (expected[2] > 0.97) if inner else torch.ones(size, dtype=torch.bool)
    assert whole.sum() >= 4
    return (found - expected)[:2, whole].abs().max().item(), stages


@pytest.mark.parametrize("size", [(60, 60), (96, 48), (50, 90)])
@pytest.mark.parametrize("seed", range(6))
def test_crops_and_flips_are_followed(size, seed):
    augment = {**PLAIN, "scale": (0.2, 0.8), "hflip": 0.5, "vflip": 0.5}
    transform, _ = create_transforms((3, 48, 48), mean=MEAN, std=STD, augment=augment)
    difference, stages = largest_difference(transform, coordinates(*size), seed=seed)
    assert stages
    assert difference < 0.03  # of the picture's side; the picture's own values are multiples of 1/255


def test_flips_come_and_go():
    """Each flip alone, where it is sure and where it never comes."""
    image, maps = coordinates(48, 48), coordinate_maps(6, 6)
    for augment, expected in (
        ({"hflip": 1.0}, maps.flip(2)),
        ({"vflip": 1.0, "hflip": 0.0}, maps.flip(1)),
        ({"hflip": 0.0}, maps),
    ):
        whole = {**PLAIN, "scale": (1.0, 1.0), "ratio": (1.0, 1.0), **augment}
        transform, _ = create_transforms((3, 48, 48), mean=MEAN, std=STD, augment=whole)
        _, stages = FollowedTransform(transform)(image)
        torch.testing.assert_close(resample(maps, stages, (6, 6)), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(60, 60), (96, 48), (50, 91)])
def test_evaluation_transforms_are_followed(crop_mode, size):
    for crop_pct in (1.0, 0.75):
        transform = evaluation_transform(
            (3, 48, 48), mean=MEAN, std=STD, crop_pct=crop_pct, crop_mode=crop_mode, interpolation="bilinear"
        )
        inner = crop_mode == "border"  # whose borders are filled
        difference, _ = largest_difference(transform, coordinates(*size), inner=inner)
        assert difference < 0.03


def test_no_augmentation_of_a_square_image_leaves_the_map_as_it_is():
    transform, _ = create_transforms((3, 48, 48), mean=MEAN, std=STD, augment={"no_aug": True}, whole_image=True)
    _, stages = FollowedTransform(transform)(coordinates(30, 50))
    maps = torch.randn(4, 5, 7)
    torch.testing.assert_close(resample(maps, stages, (5, 7)), maps)


@pytest.mark.parametrize("name", ["ShearX", "ShearY", "TranslateXRel", "TranslateYRel", "TranslateX", "Rotate"])
@pytest.mark.parametrize("width", [48, 80])
def test_moves_of_rand_augment_are_followed(name, width):
    hparams = {"img_mean": (0, 0, 0), "translate_const": 15, "interpolation": Image.Resampling.BILINEAR}
    policy = RandAugment([AugmentOp(name, prob=1.0, magnitude=6, hparams=hparams)], num_layers=1)
    to_tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    transform = transforms.Compose([policy, *to_tensor])
    for seed in range(4):  # the direction is drawn
        difference, stages = largest_difference(transform, coordinates(width, 48), seed=seed, inner=True)
        assert len(stages) == 1
        assert difference < 0.03
    # what was moved in from outside is nothing at all
    found = resample(torch.ones(1, 8, 8), stages, (24, 24))[0]
    assert found.min() == 0
    assert found.max() == 1


def test_auto_augment_and_operations_on_colours():
    move = AugmentOp("Rotate", prob=1.0, magnitude=5, hparams={"img_mean": (0, 0, 0)})
    colour = AugmentOp("Invert", prob=1.0, hparams={"img_mean": (0, 0, 0)})
    never = AugmentOp("ShearX", prob=0.0, magnitude=5, hparams={"img_mean": (0, 0, 0)})
    _, stages = FollowedTransform(AutoAugment([[move, colour, never]]))(coordinates(40, 40))
    assert len(stages) == 1
    assert move.aug_fn is NAME_TO_OP["Rotate"]  # what was given stays as it was


def test_moves_add_up():
    """A crop, a flip and a rotation, as in a recipe."""
    augment = {
        "interpolation": "bilinear",
        "scale": (0.4, 0.9),
        "hflip": 1.0,
        "auto_augment": "rand-m9-n3-mstd0.5",
    }
    transform, _ = create_transforms((3, 64, 64), mean=MEAN, std=STD, augment=augment)
    followed = FollowedTransform(transform)
    for step in followed.steps:
        if isinstance(step, RandAugment):  # what changes colours would hide the places
            step.ops = [op for op in step.ops if op.name.startswith(("Shear", "Translate", "Rotate"))]
            step.choice_weights = None
    counts = set()
    for seed in range(12):
        seeded(seed)
        pixels, stages = followed(coordinates(70, 90))
        found = resample(coordinate_maps(32, 32), stages, (8, 8))
        expected = by_cells(pixels, (8, 8))
        whole = found[2] > 0.999
        # the grey that fills what is shifted in has 0.5 everywhere
        assert (found - expected)[:2, whole & (expected[2] > 0.99)].abs().max() < 0.04
        counts.add(len(stages))
    assert max(counts) >= 4


@pytest.mark.parametrize(("grid", "size"), [((18, 18), (14, 14)), ((6, 9), (4, 5)), ((7, 7), (7, 7))])
def test_a_crop_is_roi_align(grid, size):
    maps = torch.randn(3, *grid)
    image = coordinates(200, 100)
    for seed in range(5):
        seeded(seed)
        crop = transforms.RandomResizedCrop((32, 32), scale=(0.05, 1.0))
        _, stages = FollowedTransform(crop)(image)
        (left, width), (top, height) = ((row[2], row[i]) for i, row in enumerate(stages[0]))
        corners = [left * grid[1], top * grid[0], (left + width) * grid[1], (top + height) * grid[0]]
        boxes = torch.tensor([[0.0, *corners]], dtype=torch.float32)
        expected = roi_align(maps[None], boxes, size, aligned=True)[0]
        torch.testing.assert_close(resample(maps, stages, size), expected, atol=1e-4, rtol=1e-4)


def test_the_image_is_that_of_the_transform_alone():
    augment = {"auto_augment": "rand-m5-mstd0.5-inc1", "re_prob": 0.5, "interpolation": "random", "vflip": 0.5}
    transform, _ = create_transforms((3, 32, 32), mean=MEAN, std=STD, augment=augment)
    followed = pickle.loads(pickle.dumps(FollowedTransform(transform)))  # as a spawned worker gets it
    for seed in range(10):
        seeded(seed)
        expected = transform(coordinates(50, 40))
        seeded(seed)
        found, _ = followed(coordinates(50, 40))
        assert torch.equal(found, expected)


def test_no_transform_is_none():
    image = coordinates(5, 5)
    assert FollowedTransform(None)(image) == (image, [])


def test_unknown_steps_are_refused():
    with pytest.raises(ValueError, match="cannot follow an image through RandomPerspective, which may move"):
        FollowedTransform(transforms.Compose([transforms.RandomPerspective()]))
