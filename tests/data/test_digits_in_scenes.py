import hashlib
import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

from attnmix.data import DigitsInScenes
from attnmix.data.originals import load_originals

SPLITS = ("train", "test", "train-fit", "validation", "off-centre")


@pytest.fixture(scope="module")
def by_split() -> dict[str, DigitsInScenes]:
    return {split: DigitsInScenes(split, train_count=1000, test_count=797) for split in SPLITS}


@pytest.fixture(scope="module")
def train(by_split) -> DigitsInScenes:
    return by_split["train"]


def few(split: str = "train", **options: object) -> DigitsInScenes:
    return DigitsInScenes(split, **{"train_count": 60, "test_count": 60, **options})


def test_shapes_and_types(train):
    assert (train.images.shape, train.images.dtype) == ((1000, 3, 48, 48), torch.uint8)
    assert (train.labels.shape, train.labels.dtype) == ((1000,), torch.int64)
    assert (train.masks.shape, train.masks.dtype) == ((1000, 48, 48), torch.bool)
    assert (train.boxes.shape, train.boxes.dtype) == ((1000, 4), torch.int64)
    assert (train.originals.shape, train.originals.dtype) == ((1000,), torch.int64)
    assert (train.num_classes, train.class_names) == (10, list("0123456789"))
    assert len(train) == 1000
    assert train.unreadable == []


def test_items_are_rgb_images_with_labels_and_the_transform_is_applied(train):
    image, label = train[3]
    assert isinstance(image, Image.Image)
    assert (image.mode, image.size) == ("RGB", (48, 48))
    assert image.getpixel((5, 7)) == tuple(train.images[3, :, 7, 5].tolist())
    assert (type(label), label) == (int, int(train.labels[3]))
    assert few(transform=lambda image: image.size)[0][0] == (48, 48)


def test_a_seed_gives_the_same_pictures_whatever_the_threads_and_global_state():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = few()
        torch.set_num_threads(2)
        torch.manual_seed(1234)
        state = torch.get_rng_state()
        other = few()
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)
    for name in ("images", "labels", "masks", "boxes", "originals"):
        assert torch.equal(getattr(one, name), getattr(other, name))


DIGEST = "db0720deab20e2d7"
PRINT_DIGEST = """
import hashlib
from attnmix.data import DigitsInScenes
sets = [DigitsInScenes(split, train_count=200, test_count=200) for split in ("train", "off-centre")]
print(hashlib.sha256(b"".join(data.images.numpy().tobytes() for data in sets)).hexdigest()[:16])
"""


def test_the_pictures_are_those_of_every_other_machine():
    # If this fails, results measured on this set no longer compare with earlier ones.
    sets = [DigitsInScenes(split, train_count=200, test_count=200) for split in ("train", "off-centre")]
    data = b"".join(scenes.images.numpy().tobytes() for scenes in sets)
    assert hashlib.sha256(data).hexdigest()[:16] == DIGEST


def test_the_pictures_do_not_depend_on_the_vector_units_of_the_processor():
    plain = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST], env=plain, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == DIGEST


def test_seeds_and_splits_give_different_pictures():
    assert not torch.equal(few().images, few(seed=1).images)
    assert not torch.equal(few("test").originals, few("off-centre").originals)
    assert not torch.equal(few("train").originals, few("train-fit").originals)


def test_originals_of_the_splits(by_split):
    used = {split: set(data.originals.tolist()) for split, data in by_split.items()}
    assert used["train"] == set(range(1000))
    assert used["test"] == used["off-centre"] == set(range(1000, 1797))
    assert used["train-fit"] == set(range(800))
    assert used["validation"] == set(range(800, 1000))
    labels = load_originals()[1]
    for data in by_split.values():
        assert torch.equal(data.labels, labels[data.originals])


def test_originals_are_used_equally_often_as_far_as_the_count_allows():
    counts = DigitsInScenes("validation", test_count=500).originals.bincount(minlength=1000)[800:]
    assert counts.unique(return_counts=True)[1].tolist() == [100, 100]
    assert set(counts.tolist()) == {2, 3}


@pytest.mark.parametrize("split", SPLITS)
def test_boxes_hold_their_masks_tightly(by_split, split):
    data = by_split[split]
    assert data.masks.flatten(1).any(1).all()
    for mask, (top, left, height, width) in zip(data.masks[:100], data.boxes[:100].tolist(), strict=True):
        inside = mask[top : top + height, left : left + width]
        assert inside.sum() == mask.sum()
        assert inside[0].any()
        assert inside[-1].any()
        assert inside[:, 0].any()
        assert inside[:, -1].any()


@pytest.mark.parametrize("split", SPLITS)
def test_objects_are_brighter_than_their_surroundings(by_split, split):
    data = by_split[split]
    grey, masks = data.images.float().mean(1), data.masks
    on = (grey * masks).sum((1, 2)) / masks.sum((1, 2))
    off = (grey * ~masks).sum((1, 2)) / (~masks).sum((1, 2))
    assert (on > off + 25).float().mean() > 0.99


def test_scale_is_respected():
    ink = load_originals()[0]
    for low, high in ((0.35, 0.4), (0.6, 0.9)):
        data = few(train_count=300, scale=(low, high), rotation=0)
        full = (ink[data.originals].amax(2) > 0.8).sum(1) == 8  # digits that fill all eight rows
        height = data.boxes[full, 2] / 48
        assert full.sum() > 20
        assert height.min() > low - 0.08
        assert height.max() < high + 0.02
    # the off-centre split keeps to its own scale
    assert torch.equal(few("off-centre", scale=(0.9, 1.0)).masks, few("off-centre").masks)


def test_off_centre_objects_are_small_and_off_the_centre(by_split):
    middle, away = by_split["test"], by_split["off-centre"]
    assert (away.boxes[:, 2:].amax(1) < 0.62 * 48).all()
    assert away.masks.float().mean() < middle.masks.float().mean() / 2
    centre = away.boxes[:, :2] + away.boxes[:, 2:] / 2
    assert ((centre / 48 - 0.5).abs().amax(1) > 0.08).all()


@pytest.mark.parametrize(
    "change",
    [
        {"size": 32},
        {"scale": (0.4, 0.5)},
        {"rotation": 0},
        {"clutter": 0},
        {"texture": 0},
        {"noise": 0},
        {"seed": 7},
    ],
)
def test_every_option_shows_an_effect(change):
    data, changed = few(), few(**change)
    assert changed.images.shape != data.images.shape or not torch.equal(changed.images, data.images)


def test_counts_show_an_effect_on_their_own_splits():
    counts = {split: len(few(split, train_count=5, test_count=7)) for split in SPLITS}
    assert counts == {"train": 5, "train-fit": 5, "test": 7, "validation": 7, "off-centre": 7}


@pytest.mark.parametrize("size", [16, 33, 224])
def test_other_sizes(size):
    data = few("off-centre", size=size, test_count=20)
    assert data.images.shape[-2:] == (size, size)
    assert data.masks.flatten(1).any(1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"split": "trian"},
            r"unknown split 'trian'; did you mean 'train'\?; known: train, test, train-fit, val",
        ),
        ({"size": 8}, "size 8: .* 16 pixels"),
        ({"scale": (0.9, 0.6)}, r"scale \(0.9, 0.6\): expected \(smallest, largest\)"),
        ({"scale": 0.5}, r"scale 0.5: expected \(smallest, largest\)"),
        ({"rotation": -1}, "rotation -1: expected degrees"),
        ({"clutter": -1}, "clutter -1: expected a number of fragments"),
        ({"texture": 2}, "texture 2: expected an amplitude"),
        ({"noise": -0.1}, "noise -0.1: expected an amplitude"),
        ({"train_count": 0}, "train_count 0: expected 1 or more"),
        ({"test_count": -3}, "test_count -3: expected 1 or more"),
        ({"seed": -1}, "seed -1: expected 0 to"),
    ],
)
def test_errors_name_the_value(options, message):
    with pytest.raises(ValueError, match=message):
        DigitsInScenes(**options)
