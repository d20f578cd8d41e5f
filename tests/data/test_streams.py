import io
import logging
import tarfile
from itertools import chain

import datasets
import pytest
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_tensor

from attnmix.data.streams import HuggingFaceImages, WebdatasetImages
from attnmix.data.timm_sets import open_timm_set
from tests.stream_sets import number_of, picture, write_info, write_parquet, write_shards

KINDS = ["wds", "hfids"]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)  # else 5 s at the end of each epoch


@pytest.fixture
def write(tmp_path):
    """write(kind, counts) -> a function that opens the set: opened(is_training=...) -> its stream."""

    def make(kind, counts, damaged=None):
        if kind == "wds":
            write_shards(tmp_path, "train", counts, damaged=damaged)
            write_info(tmp_path, train=counts)
            name, options = "wds/x", {"root": str(tmp_path), "num_classes": 10}
        else:
            write_parquet(tmp_path, "train", counts, damaged=damaged)
            name, options = f"hfids/{tmp_path}", {"root": str(tmp_path / "cache"), "num_classes": 10}
            options |= {"train_num_samples": sum(counts), "eval_num_samples": sum(counts)}

        def opened(is_training=True, **more):
            options_now = {"batch_size": 5, **options, **more}
            return open_timm_set(name, "train", is_training=is_training, options=options_now, transform=to_tensor)

        return opened

    return make


def numbers(data, workers=0, epoch=0):
    data.set_epoch(epoch)
    return [
        number_of(image) for images, _ in DataLoader(data, batch_size=5, num_workers=workers) for image in images
    ]


def shares(opened, processes, workers, *, is_training, epoch=0):
    found = []
    for rank in range(processes):
        data = opened(is_training)
        used = data.share_out(rank=rank, processes=processes, workers=workers, seed=0)
        found.append(numbers(data, used, epoch))
        if is_training:
            assert len(found[-1]) == len(data)
    return found


@pytest.mark.parametrize(("processes", "workers"), [(1, 2), (2, 0), (2, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_reaches_each_sample_once(write, kind, processes, workers):
    opened = write(kind, [10, 10, 10, 10])
    found = shares(opened, processes, workers, is_training=True, epoch=1)
    assert {len(share) for share in found} == {40 // processes}
    assert sorted(chain(*found)) == list(range(40))


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_uneven_shares_have_as_many_samples_and_none_of_the_others(write, kind, processes, caplog):
    found = shares(write(kind, [10, 4, 9, 3, 10]), processes, 0, is_training=True)
    assert len({len(share) for share in found}) == 1
    assert sum(map(len, found)) >= 36
    for rank, share in enumerate(found):
        assert not set(share) & set(chain(*found[rank + 1 :]))
    told = [record.getMessage() for record in caplog.records if "readers" in record.getMessage()]
    assert len(told) == (1 if kind == "wds" else 0)  # Hugging Face deals out samples where shards do not divide
    assert all(f"has 5 shards for {processes} readers" in line for line in told)


@pytest.mark.parametrize(("processes", "workers"), [(1, 2), (2, 0), (2, 2), (3, 0), (4, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_has_each_sample_once(write, kind, processes, workers):
    found = shares(write(kind, [7, 1, 9]), processes, workers, is_training=False)
    assert sorted(chain(*found)) == list(range(17))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_depends_on_seed_and_epoch_alone(write, kind, workers):
    opened = write(kind, [20, 20])

    def order(epochs, seed=0):
        data = opened()
        data.share_out(rank=0, processes=1, workers=workers, seed=seed)
        return [numbers(data, workers, epoch) for epoch in epochs]

    first, second = order([0, 1])
    assert order([1]) == [second]  # straight into the second epoch
    assert order([0, 0]) == [first, first]
    assert first != second
    assert order([0], seed=100_003) != [first]


def test_one_shard_is_shuffled_anew_in_each_epoch(write):
    data = write("wds", [30])()
    data.share_out(rank=0, processes=1, workers=0, seed=0)
    assert numbers(data, epoch=0) != numbers(data, epoch=1)


def test_a_stream_may_be_shared_out_again(write):
    data = write("wds", [5, 5, 5, 5])(is_training=False)
    for processes, count in ((2, 10), (1, 20), (4, 5)):
        data.share_out(rank=0, processes=processes, workers=0, seed=0)
        assert len(numbers(data)) == count


@pytest.mark.parametrize(
    ("kind", "processes", "workers", "message"),
    [
        ("wds", 2, 2, r"wds/x train has 3 shards, too few for the 4 .*\(2 processes x 2 loader workers\): lower"),
        ("wds", 4, 0, r"has 3 shards, too few for the 4 .*\(4 processes x 1 loader workers\)"),
        (
            "hfids",
            3,
            2,
            r"has 1 shards for each of 3 processes, too few for 2 loader workers: lower loader.workers",
        ),
    ],
)
def test_too_few_shards_to_train(write, kind, processes, workers, message):
    data = write(kind, [4, 4, 4])()
    with pytest.raises(ValueError, match=message):
        data.share_out(rank=0, processes=processes, workers=workers, seed=0)


def test_no_more_workers_than_shards_evaluate(write):
    for kind in KINDS:
        data = write(kind, [4, 4, 4])(is_training=False)
        assert data.share_out(rank=0, processes=1, workers=8, seed=0) == 3
        assert data.share_out(rank=2, processes=3, workers=8, seed=0) == 1
    data = write("wds", [4])(is_training=False)
    assert data.share_out(rank=1, processes=2, workers=8, seed=0) == 0
    assert list(data) == []


BOMB = picture(0, size=(64, 64))
DAMAGED = {2: b"", 5: b"no image at all", 7: picture(7)[:60]}


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_samples_are_left_out_named_and_counted(write, kind, caplog):
    opened = write(kind, [10, 10], DAMAGED)
    data = opened(is_training=False)
    for _ in range(2):
        assert numbers(data) == [number for number in range(20) if number not in DAMAGED]
    assert len(data.unreadable) == 3
    assert all(word in name for word, name in zip(("2", "5", "7"), data.unreadable, strict=True))
    warnings = [record.getMessage() for record in caplog.records]
    assert sum("unreadable image" in line for line in warnings) == 3  # once each
    # in training, the share is begun again for what is missing
    data = opened()
    found = numbers(data)
    assert len(found) == len(data) == 20
    assert set(found) == set(range(20)) - set(DAMAGED)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (picture(3, size=(1, 40)), "it is 1 x 40 pixels, and a side needs 2 at least"),
        (BOMB, "exceeds limit of 600 pixels, could be decompression bomb DOS attack"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_placeholders_and_bombs_are_unreadable(write, kind, content, reason, caplog, monkeypatch):
    data = write(kind, [10], {3: content})(is_training=False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    assert numbers(data) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert reason in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_too_many_unreadable_samples_end_the_run(write, kind, workers):
    data = write(kind, [20], {**DAMAGED, 11: b""})(is_training=False)
    with pytest.raises(
        OSError, match=r"4 samples of .* train cannot be read, more than the 3 allowed; .*11.*last: "
    ):
        numbers(data, workers)
    assert len(data._is_unreadable.nonzero()) == 4  # what a worker finds is known here


def test_the_allowance_is_one_percent_of_a_large_stream(write):
    opened = write("wds", [4])
    assert opened(train_num_samples=1000).allowed_unreadable == 10
    assert opened().allowed_unreadable == 3


def test_a_sample_without_a_label_is_unreadable(write, tmp_path, caplog):
    data = write("wds", [6])(is_training=False)
    with tarfile.open(tmp_path / "train-0000.tar", "a") as tar:
        entry = tarfile.TarInfo("lonely.png")
        entry.size = len(picture(9))
        tar.addfile(entry, io.BytesIO(picture(9)))
    with caplog.at_level(logging.WARNING):
        assert len(numbers(data)) == 6
    assert "train-0000.tar/lonely (it has no 'cls')" in caplog.text


def test_a_share_that_gives_nothing_ends_the_run(write, tmp_path):
    data = write("wds", [6, 6])()
    for shard in tmp_path.glob("*.tar"):
        shard.write_bytes(b"no archive")
    with pytest.raises(OSError, match="wds/x train gave 0 samples where 15 were to come: are its shards damaged"):
        numbers(data)


def test_a_missing_shard_is_named(write, tmp_path):
    opened = write("wds", [6, 6])
    (tmp_path / "train-0001.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"'wds/x' has no shard .*train-0001.tar"):
        opened()


def open_by_split(tmp_path, name, split, **options):
    options = {"root": str(tmp_path), "num_classes": 10, **options}
    return open_timm_set(name, split, is_training=True, options=options, transform=to_tensor)


def test_shards_by_pattern(tmp_path):
    split = write_shards(tmp_path, "train", [6, 6])
    data = open_by_split(tmp_path, "wds/x", split, train_num_samples=12)
    assert isinstance(data, WebdatasetImages)
    assert (len(data), data.num_samples) == (12, 12)
    with pytest.raises(
        ValueError, match=r"'wds/x' cannot be read: .*num_samples not specified.*train_num_samples"
    ):
        open_by_split(tmp_path, "wds/x", split)
    with pytest.raises(
        ValueError, match=r"cannot be read: split validation not found in info.*a split is a name in"
    ):
        open_by_split(tmp_path, "wds/x", "validation")
    with pytest.raises(ValueError, match=r"'wds/x' needs data_options root"):
        open_by_split(tmp_path, "wds/x", split, root=None)


def test_hugging_face_sets_state_their_size_and_classes_in_their_card(tmp_path):
    write_parquet(tmp_path / "set", "train", [6, 6], card=True)
    data = open_by_split(tmp_path, f"hfids/{tmp_path / 'set'}", "train", num_classes=None, repeats=2)
    assert isinstance(data, HuggingFaceImages)
    assert data.class_names == [str(digit) for digit in range(10)]
    assert (len(data), data.num_samples) == (24, 24)
    assert sorted(numbers(data)) == sorted([*range(12), *range(12)])


def test_hugging_face_sets_that_do_not_say_their_size(tmp_path):
    write_parquet(tmp_path / "set", "train", [6])
    name = f"hfids/{tmp_path / 'set'}"
    with pytest.raises(
        ValueError, match="how many samples its split 'train' has: give data_options train_num_sam"
    ):
        open_by_split(tmp_path, name, "train")
    data = open_by_split(tmp_path, name, "tain", train_num_samples=6)
    with pytest.raises(ValueError, match=r"Bad split: tain. Available splits: \['train'\]"):
        data.share_out(rank=0, processes=1, workers=0, seed=0)
