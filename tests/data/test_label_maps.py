import dataclasses
import json
import os
import pickle
import shutil
import warnings

import numpy as np
import pytest
import torch

from attnmix.data import Digits, DigitsInScenes
from attnmix.data import label_map_writer as writing
from attnmix.data.folder import open_folder
from attnmix.data.label_map_writer import LabelMapWriter
from attnmix.data.label_maps import AboutMaps, LabelMapStore, digest_of


def about(count=5, **changes):
    values = {
        "count": count,
        "grid": (2, 3),
        "top": 2,
        "num_classes": 4,
        "class_names": ("a", "b", "c", "d"),
        "data": "some data",
        "digest": "0" * 32,
        "teacher": "someone",
        "image_size": (8, 12),
        "resized": "somehow",
    }
    return AboutMaps(**{**values, **changes})


def random_maps(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    classes = torch.rand(count, 4, 2, 3, generator=generator).argsort(dim=1)[:, :2]
    return torch.randn(count, 2, 2, 3, generator=generator), classes


def write(folder, count=5, **changes):
    scores, classes = random_maps(count)
    with LabelMapWriter(folder, about(count, **changes)) as writer:
        writer.write(scores, classes, [True] * count)
        return writer.finish()


def test_what_is_written_is_read(tmp_path):
    store = write(tmp_path / "maps")
    scores, classes = random_maps(5)
    assert len(store) == 5
    assert store.about == about(5)
    for index in range(5):
        found = store.read(index)
        assert torch.equal(found[0], classes[index])
        torch.testing.assert_close(found[1], scores[index], atol=2e-3, rtol=1e-3)  # float16
        assert index in store
    assert sorted(os.listdir(tmp_path)) == ["maps"]
    assert sorted(os.listdir(tmp_path / "maps")) == ["classes.npy", "maps.json", "scores.npy"]
    # plain NumPy files, of the size that was foretold
    assert np.load(tmp_path / "maps" / "scores.npy", allow_pickle=False).dtype == np.float16
    assert np.load(tmp_path / "maps" / "classes.npy", allow_pickle=False).dtype == np.uint16
    assert store.about.bytes == 5 * 2 * 2 * 3 * 4


def test_many_classes_take_wider_numbers(tmp_path):
    names = tuple(map(str, range(70_000)))
    store = write(tmp_path / "maps", num_classes=70_000, class_names=names)
    assert store.classes.dtype == np.int32


def test_large_logits_are_kept_finite(tmp_path):
    with LabelMapWriter(tmp_path / "maps", about(1)) as writer:
        writer.write(torch.full((1, 2, 2, 3), 1e6), torch.zeros(1, 2, 2, 3, dtype=torch.int64), [True])
        _, scores = writer.finish().read(0)
    assert (scores == 65504).all()


def test_a_store_goes_to_a_worker_as_its_folder(tmp_path):
    store = write(tmp_path / "maps", count=200)
    data = pickle.dumps(store)
    assert len(data) < 500
    assert torch.equal(pickle.loads(data).read(3)[0], store.read(3)[0])


def test_missing_images_are_marked(tmp_path):
    scores, classes = random_maps(5)
    with LabelMapWriter(tmp_path / "maps", about(5)) as writer:
        writer.write(scores[:3], classes[:3], [True, False, True])
        writer.write(scores[3:], classes[3:], [True, False])
        store = writer.finish()
    assert store.about.missing == (1, 4)
    assert [index in store for index in range(5)] == [True, False, True, True, False]
    assert not store.read(1)[1].any()
    assert not store.read(4)[0].any()


# ------------------------------------------------------------------ going on


def test_an_interrupted_writer_goes_on(tmp_path):
    scores, classes = random_maps(5)

    def interrupted():
        with LabelMapWriter(tmp_path / "maps", about(5)) as writer:
            writer.write(scores[:2], classes[:2], [True, False])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(FileNotFoundError, match=r"maps.part is not finished; the command that began it goes on"):
        LabelMapStore(tmp_path / "maps")
    with LabelMapWriter(tmp_path / "maps", about(5)) as writer:
        assert writer.done == 2
        writer.write(scores[2:], classes[2:], [True] * 3)
        store = writer.finish()
    assert store.about.missing == (1,)
    for index in (0, 2, 3, 4):
        assert torch.equal(store.read(index)[0], classes[index])


def test_what_was_written_after_the_last_note_is_written_again(tmp_path):
    """A crash leaves more in the arrays than the notes know of."""
    scores, classes = random_maps(5)
    writer = LabelMapWriter(tmp_path / "maps", about(5))
    writer.write(scores[:2], classes[:2], [True, True])
    writer.save()
    writer.write(scores[2:4] + 1, classes[2:4], [True, False])
    for file in writer._files.values():
        file.close()
    with LabelMapWriter(tmp_path / "maps", about(5)) as again:
        assert again.done == 2
        again.write(scores[2:], classes[2:], [True] * 3)
        store = again.finish()
    assert store.about.missing == ()
    torch.testing.assert_close(store.read(3)[1], scores[3], atol=2e-3, rtol=1e-3)


def begin(folder):
    scores, classes = random_maps(5)
    with LabelMapWriter(folder, about(5)) as writer:
        writer.write(scores[:2], classes[:2], [True, True])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": "another"}, "maps.part was begun with teacher 'someone', not 'another'"),
        ({"digest": "1"}, "was begun with digest"),
        ({"top": 3}, "was begun with top 2, not 3"),
        ({"grid": (3, 3)}, "was begun with grid"),
    ],
)
def test_other_maps_do_not_go_on(tmp_path, changes, message):
    begin(tmp_path / "maps")
    with pytest.raises(ValueError, match=message):
        LabelMapWriter(tmp_path / "maps", about(5, **changes))


def test_damage_done_to_what_was_begun(tmp_path):
    begin(tmp_path / "maps")
    part = tmp_path / "maps.part"
    whole = (part / "scores.npy").read_bytes()
    (part / "scores.npy").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="scores.npy is cut short: remove .*maps.part and begin again"):
        LabelMapWriter(tmp_path / "maps", about(5))
    (part / "scores.npy").write_bytes(b"nothing" + whole)
    with pytest.raises(ValueError, match="scores.npy is damaged"):
        LabelMapWriter(tmp_path / "maps", about(5))
    header(part, "(" * 150)
    with pytest.raises(ValueError, match="scores.npy is damaged .*: remove .*maps.part and begin again"):
        LabelMapWriter(tmp_path / "maps", about(5))
    (part / "scores.npy").unlink()
    with pytest.raises(ValueError, match="scores.npy is missing"):
        LabelMapWriter(tmp_path / "maps", about(5))
    progress = json.loads((part / "progress.json").read_text())
    (part / "progress.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="progress.json cannot be read .*: remove .*maps.part and begin again"):
        LabelMapWriter(tmp_path / "maps", about(5))
    (part / "progress.json").write_text(json.dumps({**progress, "done": 9}))
    with pytest.raises(ValueError, match="done is 9, which cannot be"):
        LabelMapWriter(tmp_path / "maps", about(5))


def test_writing_has_its_limits(tmp_path, monkeypatch):
    scores, classes = random_maps(5)
    with LabelMapWriter(tmp_path / "maps", about(5)) as writer:
        with pytest.raises(ValueError, match="the teacher someone gives scores that are no numbers"):
            writer.write(scores / 0, classes, [True] * 5)
        with pytest.raises(ValueError, match="0 of 5 label maps are written"):
            writer.finish()
    write(tmp_path / "done")
    with pytest.raises(FileExistsError, match="done is there already and holds label maps: choose another --out"):
        LabelMapWriter(tmp_path / "done", about(5))
    (tmp_path / "else").mkdir()
    with pytest.raises(FileExistsError, match="holds something else"):
        LabelMapWriter(tmp_path / "else", about(5))
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match="5 images with 2 x 3 cells take .* GB more, and .* GB free"):
        LabelMapWriter(tmp_path / "new", about(5))


# ------------------------------------------------------------------ damage


def save(path, array):
    np.save(path, array, allow_pickle=False)


def edit(folder, **changes):
    told = json.loads((folder / "maps.json").read_text())
    (folder / "maps.json").write_text(json.dumps({**told, **changes}))


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def header(folder, shape):
    """A file whose header says this of the array's shape; the right amount of data follows."""
    words = f"{{'descr': '<f2', 'fortran_order': False, 'shape': {shape}, }}".encode()
    (folder / "scores.npy").write_bytes(
        b"\x93NUMPY\x02\x00" + len(words).to_bytes(4, "little") + words + bytes(120)
    )


def describe(folder, text):
    (folder / "maps.json").write_text(text)


BROKEN_ARRAY = r"scores.npy is damaged or cut short \(.*\): make the maps again"
BROKEN_JSON = r"maps.json cannot be read as JSON \(.*\): make the maps again"


def objects(path):
    np.save(path, np.array([{}, []], dtype=object), allow_pickle=True)


DAMAGE = {
    "no file": (lambda f: (f / "scores.npy").unlink(), "scores.npy is missing"),
    "cut short": (lambda f: cut(f / "classes.npy"), "classes.npy is damaged or cut short"),
    "empty": (lambda f: (f / "classes.npy").write_bytes(b""), "classes.npy is damaged or cut short"),
    "no array": (
        lambda f: (f / "scores.npy").write_bytes(b"PK\x03\x04" * 99),
        "scores.npy is damaged or cut short",
    ),
    "pickled": (lambda f: objects(f / "scores.npy"), "scores.npy is damaged or cut short"),
    "shape": (
        lambda f: save(f / "scores.npy", np.zeros((5, 2, 3, 2), np.float16)),
        r"scores.npy holds float16 of shape \(5, 2, 3, 2\), but maps.json says float16 of \(5, 2, 2, 3\)",
    ),
    "type": (
        lambda f: save(f / "scores.npy", np.zeros((5, 2, 2, 3), np.float32)),
        "scores.npy holds float32 of shape .*, but maps.json says float16",
    ),
    "class": (
        lambda f: save(f / "classes.npy", np.full((5, 2, 2, 3), 4, np.uint16)),
        "classes.npy holds class 4 for image 0, but there are 4",
    ),
    "number": (
        lambda f: save(f / "scores.npy", np.full((5, 2, 2, 3), np.nan, np.float16)),
        "scores.npy holds scores for image 0 that are no numbers",
    ),
    "open brackets": (lambda f: header(f, "(" * 150), BROKEN_ARRAY),
    "many signs": (lambda f: header(f, "(" + "-" * 5000 + "5,)"), BROKEN_ARRAY),
    "many more signs": (lambda f: header(f, "(" + "-" * 9000 + "5,)"), BROKEN_ARRAY),
    "huge shape": (lambda f: header(f, f"({2**70},)"), BROKEN_ARRAY),
    "large shape": (lambda f: header(f, f"({2**40}, {2**40})"), BROKEN_ARRAY),
    "negative shape": (lambda f: header(f, "(-5,)"), BROKEN_ARRAY),
    "negative shapes": (lambda f: header(f, "(-5, -2, 2, 3)"), r"scores.npy .*: make the maps again"),
    "a shape of truth": (lambda f: header(f, "(True,)"), BROKEN_ARRAY),
    "called shape": (lambda f: header(f, "5()"), BROKEN_ARRAY),
    "many digits of shape": (lambda f: header(f, "(" + "9" * 5000 + ",)"), BROKEN_ARRAY),
    "json": (lambda f: describe(f, "{"), BROKEN_JSON),
    "bytes": (lambda f: (f / "maps.json").write_bytes(b"\xff\xfe\x00"), BROKEN_JSON),
    "many brackets": (lambda f: describe(f, "[" * 100_000), BROKEN_JSON),
    "many digits": (lambda f: describe(f, f'{{"format": 1, "count": {"9" * 5000}}}'), BROKEN_JSON),
    "list": (
        lambda f: describe(f, "[]"),
        "maps.json does not describe label maps in format 1: make the maps again",
    ),
    "format": (lambda f: edit(f, format=2), "maps.json does not describe label maps in format 1"),
    "count": (lambda f: edit(f, count=-1), "maps.json: count is -1, which cannot be"),
    "text count": (lambda f: edit(f, count="5"), "maps.json: count is '5'"),
    "yes": (lambda f: edit(f, top=True), "maps.json: top is True"),
    "grid": (lambda f: edit(f, grid=[2]), r"maps.json: grid is \[2\]"),
    "names": (lambda f: edit(f, class_names=[1, 2, 3, 4]), "maps.json: class_names is"),
    "few names": (lambda f: edit(f, class_names=["a"]), "top 2 and 1 class names do not go with num_classes 4"),
    "teacher": (lambda f: edit(f, teacher=None), "maps.json: teacher is None"),
    "missing": (lambda f: edit(f, missing=[5]), "maps.json: missing names images beyond the 5"),
    "missing text": (lambda f: edit(f, missing="no"), "maps.json: missing is 'no'"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_at_opening(tmp_path, damage):
    store = write(tmp_path / "maps")
    harm, message = DAMAGE[damage]
    del store
    harm(tmp_path / "maps")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=message) as caught:
            LabelMapStore(tmp_path / "maps")
    assert str(tmp_path / "maps") in str(caught.value)
    assert len(str(caught.value)) < 400


def test_damage_beyond_the_looked_at_is_named_at_reading(tmp_path):
    write(tmp_path / "maps", count=300)
    classes = np.array(np.load(tmp_path / "maps" / "classes.npy"))
    classes[1] = 9
    save(tmp_path / "maps" / "classes.npy", classes)
    store = LabelMapStore(tmp_path / "maps")
    with pytest.raises(ValueError, match="classes.npy holds class 9 for image 1, but there are 4"):
        store.read(1)


def test_no_folder(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="no label maps in .*nowhere': there is no maps.json; `attnmix maps`"
    ):
        LabelMapStore(tmp_path / "nowhere")


@pytest.mark.parametrize("folder", [".", "/", ".."])
def test_folders_without_a_name(tmp_path, monkeypatch, folder):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(FileNotFoundError, match=f"no label maps in '{folder}': there is no maps.json"):
        LabelMapStore(folder)
    with pytest.raises(FileExistsError, match="is there already and holds something else: choose another --out"):
        LabelMapWriter(folder, about(5))


def test_inside_the_folder_it_has_its_name_all_the_same(tmp_path, monkeypatch):
    begin(tmp_path / "maps")
    (tmp_path / "maps" / "in").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "maps")
    with pytest.raises(FileNotFoundError, match="maps.part is not finished"):
        LabelMapStore(".")
    monkeypatch.chdir(tmp_path / "maps" / "in")
    with pytest.raises(FileNotFoundError, match="maps.part is not finished"):
        LabelMapStore("..")


# ------------------------------------------------------------------ which data


def small(**options):
    return DigitsInScenes("train", **{"size": 16, "train_count": 6, **options})


def test_the_digest_tells_embedded_data_apart():
    same = digest_of(small())
    assert digest_of(small()) == same
    others = [small(seed=1), small(size=18), small(train_count=7), small(noise=0.1), Digits("train")]
    assert len({same, *map(digest_of, others)}) == 6


def test_the_digest_is_of_names_and_order_not_of_the_place(make_folder, tmp_path):
    root = make_folder()
    digest = digest_of(open_folder(root / "train", options={}, transform=None))
    shutil.copytree(root / "train", tmp_path / "moved")
    assert digest_of(open_folder(tmp_path / "moved", options={}, transform=None)) == digest
    (tmp_path / "moved" / "cat" / "0.jpg").rename(tmp_path / "moved" / "cat" / "9.jpg")
    assert digest_of(open_folder(tmp_path / "moved", options={}, transform=None)) != digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 7}, "are of the digits, 7 images, and these has 6: make them for this data"),
        (
            {"num_classes": 4, "class_names": tuple("abcd")},
            "are of the digits, 4 classes, and these has 10",
        ),
        ({"digest": "0"}, "are of the digits, and these has other images, classes or another order"),
    ],
)
def test_maps_of_other_data_are_refused(tmp_path, changes, message):
    images = small()
    right = about(
        6, num_classes=10, class_names=tuple(images.class_names), data="the digits", digest=digest_of(images)
    )
    told = dataclasses.replace(right, **changes)
    scores, classes = random_maps(told.count)
    with LabelMapWriter(tmp_path / "maps", told) as writer:
        writer.write(scores, classes, [True] * told.count)
        store = writer.finish()
    with pytest.raises(ValueError, match=f"{message}.*or train on the digits"):
        store.check_made_for(images, "these")
    # data of the same name is not sent to itself
    with pytest.raises(ValueError, match=r"attnmix maps`, or train with the data_options \(counts, seed\) that"):
        store.check_made_for(images, "the digits")
