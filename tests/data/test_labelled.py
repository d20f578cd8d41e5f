import logging
import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_tensor

from attnmix.data.folder import open_folder
from attnmix.data.labelled import UNREAD, MarkedStandIns, ReadableImages
from tests.data.conftest import save_image, truncate


def thumbnail(image):
    return to_tensor(image.resize((8, 8)))


def open_split(folder: Path) -> ReadableImages:
    return open_folder(folder, options={}, transform=thumbnail)


@pytest.fixture
def damaged(make_folder) -> Path:
    """Six images of two classes: cat/1.jpg is cut short and dog/0.jpg is text."""
    folder = make_folder() / "train"
    truncate(folder / "cat/1.jpg")
    (folder / "dog/0.jpg").write_text("no image at all")
    return folder


def test_unreadable_files_are_replaced_named_once_and_counted(damaged, caplog):
    data = open_split(damaged)
    assert data.unreadable == []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            items = [data[index] for index in range(len(data))]
    assert data.unreadable == [str(damaged / "cat/1.jpg"), str(damaged / "dog/0.jpg")]
    assert [label for _, label in items] == [0, 0, 0, 1, 1, 1]
    assert torch.equal(items[1][0], items[2][0])  # the next readable one stands in, with its own label
    assert torch.equal(items[3][0], items[4][0])
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"unreadable image {damaged / 'cat/1.jpg'}",
        f"unreadable image {damaged / 'dog/0.jpg'}",
    ]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_loader_workers_find_is_known_here(damaged, start):
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {start} on this system")
    data = open_split(damaged)
    loader = DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=start)
    assert sum(len(labels) for _, labels in loader) == 6
    assert len(data.unreadable) == 2


def test_stand_ins_are_marked_in_a_measurement(damaged):
    data = open_split(damaged)
    marked = MarkedStandIns(data)
    assert [label for _, label in (marked[index] for index in range(len(marked)))] == [0, UNREAD, 0, UNREAD, 1, 1]
    assert torch.equal(marked[1][0], data[2][0])  # so that batches and their shapes stay


@pytest.mark.parametrize("label", [-1, 2])
def test_a_measurement_wants_labels(label):
    def load(index):
        return Image.new("RGB", (40, 30)), label if index == 1 else 0

    marked = MarkedStandIns(ReadableImages(3, load, "file {}".format, class_names=["a", "b"]))
    assert marked[0][1] == 0
    with pytest.raises(ValueError, match=f"file 1 has the label {label}, but labels are 0 to 1: evaluate on"):
        marked[1]


def test_too_many_unreadable_files_end_the_run_by_name(make_folder):
    folder = make_folder(per_class=5) / "val"
    for index in range(4):
        truncate(folder / f"dog/{index}.jpg")
    data = open_split(folder)
    with pytest.raises(OSError, match=r"4 of 10 images cannot be read, more than the 3 allowed.*dog/0.jpg, "):
        data[5]


def test_the_allowance_is_one_percent_of_a_large_set():
    def load(index):
        raise OSError("cut")

    data = ReadableImages(1000, load, str, class_names=["a"])
    assert data.allowed_unreadable == 10
    with pytest.raises(OSError, match=r"11 of 1000 images cannot be read.*: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\."):
        data[0]
    assert ReadableImages(6, load, str, class_names=["a"], tolerated=1).allowed_unreadable == 1


def test_a_set_of_which_nothing_can_be_read(tmp_path):
    save_image(tmp_path / "cat/1.jpg")
    truncate(tmp_path / "cat/1.jpg")
    with pytest.raises(OSError, match=r"none of the 1 images can be read: .*cat/1.jpg"):
        open_split(tmp_path)[0]


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((1, 30), "it is 1 x 30 pixels, and a side needs 2 at least"),
        ((30, 1), "it is 30 x 1 pixels, and a side needs 2 at least"),
        ((2, 402), "it is 2 x 402 pixels: more than 200 times as long as wide"),
        ((64, 64), "could be decompression bomb"),
    ],
)
def test_placeholders_and_bombs_are_unreadable(make_folder, monkeypatch, caplog, size, reason):
    folder = make_folder() / "train"
    save_image(folder / "cat/1.jpg", size)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # refused above twice as many
    data = open_split(folder)
    assert data.read(1) is None
    assert data[1][1] == 0
    assert data.unreadable == [str(folder / "cat/1.jpg")]
    assert reason in caplog.text


def test_empty_files_are_unreadable(make_folder, caplog):
    folder = make_folder() / "train"
    (folder / "cat/1.jpg").write_bytes(b"")
    data = open_split(folder)
    assert torch.equal(data[1][0], data[2][0])
    assert data.unreadable == [str(folder / "cat/1.jpg")]
    assert f"{folder / 'cat/1.jpg'} (it is empty, damaged or no image): the next" in caplog.text


def test_pictures_that_come_decoded_are_checked_too():
    pictures = [Image.new("L", (1, 8)), Image.new("L", (8, 8))]
    data = ReadableImages(2, lambda index: (pictures[index], index), str, class_names=["a", "b"])
    image, label = data[0]
    assert (image.mode, image.size, label) == ("RGB", (8, 8), 1)
    assert data.unreadable == ["0"]


def test_a_fault_of_the_transform_is_no_unreadable_file(make_folder):
    def broken(image):
        raise ValueError("my own mistake")

    data = open_folder(make_folder() / "train", options={}, transform=broken)
    with pytest.raises(ValueError, match="my own mistake"):
        data[0]
    assert data.unreadable == []


def test_indices_and_pickling(make_folder):
    data = open_split(make_folder() / "train")
    assert torch.equal(data[-1][0], data[5][0])
    with pytest.raises(IndexError, match="index 6 in a data set of 6 images"):
        data[6]
    assert torch.equal(pickle.loads(pickle.dumps(data))[2][0], data[2][0])
