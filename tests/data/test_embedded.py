import copy

import pytest
import torch

from attnmix.data import create_datasets, embedded
from attnmix.data.digits_in_scenes import DigitsInScenes

INPUTS = {"input_size": (3, 24, 24), "mean": (0.5,) * 3, "std": (0.5,) * 3, "eval_split": "test"}
SMALL = {"train_count": 6, "test_count": 4}


class Counted:
    """Counts how often an image is made."""

    def __init__(self):
        self.made = 0

    def __call__(self, image):
        self.made += 1
        return torch.tensor(float(self.made))


def scenes():
    return DigitsInScenes("train", size=16, train_count=5, transform=Counted())


def test_kept_items_are_made_once_each():
    images = scenes()
    images.keep_items()
    first = [images[i] for i in range(5)]
    assert [images[i] for i in range(5)] == first
    assert images.transform.made == 5


def test_without_keeping_each_is_made_anew():
    images = scenes()
    assert images[0][0] != images[0][0]


def test_another_transform_keeps_nothing_and_leaves_the_original_alone():
    images = scenes()
    images.keep_items()
    kept = images[2]
    other = copy.copy(images)
    other.transform = lambda image: torch.tensor(-1.0)
    assert other[2][0] == other[3][0] == -1
    assert images[2] == kept
    assert other.transform is not images.transform


def test_too_many_pixels_are_not_kept(monkeypatch):
    images = scenes()
    monkeypatch.setattr(embedded, "KEPT_BYTES", 4 * images.images.numel() - 1)
    images.keep_items()
    assert images[0][0] != images[0][0]


@pytest.mark.parametrize("augment", [{"no_aug": True}, {"no_aug": False, "hflip": 0.5}])
def test_what_draws_nothing_is_kept(augment):
    train, test = create_datasets("digits-in-scenes", **INPUTS, augment=augment, data_options=SMALL)
    assert test[1][0] is test[1][0]
    assert (train[1][0] is train[1][0]) is augment["no_aug"]
    if not augment["no_aug"]:
        pictures = torch.stack([train[1][0] for _ in range(20)])
        assert not (pictures == pictures[0]).all()
