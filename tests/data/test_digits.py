import subprocess
import sys

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from attnmix.data import Digits
from attnmix.data.originals import load_originals


def test_every_original_once_as_it_is():
    data = Digits("train")
    ink, labels = load_originals()
    assert len(data) == 1000
    assert (data.num_classes, data.class_names) == (10, list("0123456789"))
    assert torch.equal(data.labels, labels[:1000])
    torch.testing.assert_close(data.images[:, 1] / 255, ink[:1000].float(), atol=0.51 / 255, rtol=0)


def test_the_originals_are_scikit_learns_and_are_read_without_it():
    code = (
        "import sys, attnmix.training.loop; from attnmix.data.originals import load_originals; load_originals(); "
        "print('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    theirs = load_digits()
    ink, labels = load_originals()
    assert torch.equal(ink, torch.from_numpy(theirs.images) / 16)
    assert torch.equal(labels, torch.from_numpy(theirs.target).long())


def test_splits():
    assert [len(Digits(split)) for split in ("train", "test", "train-fit", "validation")] == [
        1000,
        797,
        800,
        200,
    ]
    assert Digits("validation").originals.tolist() == list(range(800, 1000))


def test_items():
    image, label = Digits("test")[2]
    assert isinstance(image, Image.Image)
    assert (image.mode, image.size, label) == ("RGB", (8, 8), int(load_originals()[1][1002]))
    assert Digits("test", transform=lambda image: image.mode)[0][0] == "RGB"


def test_unknown_split_lists_the_known():
    with pytest.raises(
        ValueError, match=r"unknown split 'off-centre'; known: train, test, train-fit, validation$"
    ):
        Digits("off-centre")
