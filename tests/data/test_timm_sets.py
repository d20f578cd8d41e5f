import struct
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from PIL import Image
from timm.data.dataset import IterableImageDataset
from torchvision.transforms.functional import pil_to_tensor

from attnmix.data import timm_sets
from attnmix.data.labelled import StreamedImages
from attnmix.data.timm_sets import open_timm_set


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A MNIST of three training and two test images, as torchvision keeps it."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 3), ("t10k", 2)):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + bytes(range(count)) * 784
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + bytes(range(count)))
    return tmp_path


def open_set(name: str, split: str = "train", *, is_training: bool = True, **options):
    return open_timm_set(name, split, is_training=is_training, options=options, transform=pil_to_tensor)


def test_torchvision_sets_are_rgb_and_named(mnist):
    train = open_set("torch/mnist", root=str(mnist))
    held_out = open_set("torch/mnist", "validation", root=str(mnist))
    assert (len(train), len(held_out)) == (3, 2)
    assert train.num_classes == 10
    assert train.class_names[7] == "7 - seven"
    image, label = train[2]
    assert (image.shape, label) == ((3, 28, 28), 2)
    assert train.unreadable == []


class Reader:
    """Stands for a stream's reader of a kind that is read as it is: two images of known labels."""

    class_to_idx: ClassVar[dict[str, int]] = {}

    def __init__(self, options: dict) -> None:
        self.options = options

    def __len__(self) -> int:
        return self.options["num_samples"]

    def __iter__(self):
        yield from ((Image.new("RGB", (4, 4)), label) for label in (1, 0))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def set_loader_cfg(self, num_workers: int | None = None) -> None:
        self.num_workers = num_workers


@pytest.fixture
def streamed(monkeypatch):
    def create(name, **options):
        return IterableImageDataset(None, reader=Reader({**options, "name": name}))

    monkeypatch.setattr(timm_sets, "create_dataset", create)
    monkeypatch.setattr(timm_sets, "_is_installed", lambda package: True)


@pytest.mark.usefixtures("streamed")
def test_streams():
    counts = {"train_num_samples": 20, "eval_num_samples": 10}
    train = open_set("tfds/x", root="shards", num_classes=2, batch_size=8, **counts)
    held_out = open_set("tfds/x", "val", is_training=False, num_classes=2, **counts)
    assert isinstance(train, StreamedImages)
    assert isinstance(train, torch.utils.data.IterableDataset)
    assert (len(train), len(held_out)) == (20, 10)
    assert train.class_names == ["0", "1"]
    assert [(image.shape, label) for image, label in train] == [((3, 4, 4), 1), ((3, 4, 4), 0)]
    reader = train.stream.reader
    assert reader.options["is_training"]
    assert reader.options["batch_size"] == 8
    assert reader.options["root"] == "shards"
    train.set_epoch(3)
    assert train.share_out(rank=0, processes=1, workers=2, seed=0) == 2
    assert (reader.epoch, reader.num_workers) == (3, 2)
    assert not train.can_be_shared
    with pytest.raises(ValueError, match="2 processes cannot share this kind of stream"):
        train.share_out(rank=0, processes=2, workers=2, seed=0)


@pytest.mark.usefixtures("streamed")
def test_a_stream_without_classes_asks_for_their_number(monkeypatch):
    with pytest.raises(ValueError, match="'tfds/x' does not say its classes; give data_options num_classes"):
        open_set("tfds/x", train_num_samples=1)
    monkeypatch.setattr(Reader, "class_to_idx", {"cat": 0, "dog": 1})
    assert open_set("tfds/x", train_num_samples=1).class_names == ["cat", "dog"]
    with pytest.raises(ValueError, match="data_options num_classes 3: 'tfds/x' has 2 classes"):
        open_set("tfds/x", train_num_samples=1, num_classes=3)


@pytest.mark.parametrize(
    ("name", "split", "options", "error", "message"),
    [
        (
            "torch/cifra10",
            "train",
            {"root": "."},
            ValueError,
            r"'torch/cifra10'; did you mean 'cifar10'\?; known:",
        ),
        ("torch/cifar10", "train", {}, ValueError, "'torch/cifar10' needs data_options root"),
        (
            "torch/mnist",
            "trian",
            {"root": "."},
            ValueError,
            r"split 'trian'; did you mean 'train'\? of 'torch/mnist'",
        ),
        (
            "torch/mnist",
            "train",
            {"rot": "."},
            ValueError,
            r"data_options key 'rot'; did you mean 'root'\?",
        ),
    ],
)
def test_errors_name_the_value(name, split, options, error, message):
    with pytest.raises(error, match=message):
        open_set(name, split, **options)


@pytest.mark.parametrize("name", ["torch/cifar10", "torch/mnist"])
def test_a_set_that_is_not_on_disk(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"'{name}' is not in root .*download=true fetches it"):
        open_set(name, root=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "package"), [("hfds/x", "datasets"), ("wds/x", "webdataset"), ("tfds/x", "tensorflow-datasets")]
)
def test_a_missing_package_is_named(monkeypatch, capsys, name, package):
    monkeypatch.setattr(timm_sets, "find_spec", lambda module: None)
    with pytest.raises(ValueError, match=f"'{name}' needs the package {package}: pip install {package}"):
        open_set(name)
    assert capsys.readouterr() == ("", "")


def test_a_package_that_does_not_load_is_named(monkeypatch):
    def create(name, **options):
        raise ImportError("no module pyarrow")

    monkeypatch.setattr(timm_sets, "create_dataset", create)
    monkeypatch.setattr(timm_sets, "_is_installed", lambda package: True)
    with pytest.raises(ValueError, match="needs the package datasets, which does not load: no module pyarrow"):
        open_set("hfds/x")
