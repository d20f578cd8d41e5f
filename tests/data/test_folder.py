from pathlib import Path

import pytest
from PIL import Image

from attnmix.data.folder import check_same_classes, names_by_index, open_folder, split_folder
from tests.data.conftest import save_image


def open_split(folder: Path, **options):
    return open_folder(folder, options=options, transform=None)


def test_splits_go_by_their_own_name_or_a_synonym(make_folder):
    root = make_folder()
    assert split_folder(root, "train") == root / "train"
    assert split_folder(root, "validation") == root / "val"
    (root / "test").mkdir()
    assert split_folder(root, "test") == root / "test"
    (root / "validation").mkdir()
    assert split_folder(root, "validation") == root / "validation"


def test_images_of_any_size_and_mode_come_as_rgb_with_their_class(make_folder):
    root = make_folder()
    save_image(root / "train/dog/palette.png", mode="P")
    (root / "train/dog/notes.txt").write_text("not an image")
    data = open_split(root / "train")
    assert data.class_names == ["cat", "dog"]
    assert len(data) == 7
    assert [data[index][1] for index in range(7)] == [0, 0, 0, 1, 1, 1, 1]
    assert {data[index][0].mode for index in range(7)} == {"RGB"}
    assert len({data[index][0].size for index in range(7)}) > 2
    assert isinstance(data[0][0], Image.Image)


def test_class_map_shows_an_effect(make_folder):
    root = make_folder()
    (root / "classes.txt").write_text("dog\ncat\n")
    data = open_split(root / "train", class_map=str(root / "classes.txt"))
    assert data.class_names == ["dog", "cat"]
    assert data[0][1] == 1


def test_missing_folders_are_named_with_the_layout(make_folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder '.*nowhere'; expected SPLIT/CLASS/\*.jpg"):
        split_folder(tmp_path / "nowhere", "train")
    with pytest.raises(FileNotFoundError, match=r"no split 'test' in .* \(looked for test; found train, val\)"):
        split_folder(make_folder(), "test")


def test_a_split_without_class_folders_or_images_is_named(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"no class folders in '.*train'; expected SPLIT/CLASS"):
        open_split(tmp_path / "train")
    (tmp_path / "train/cat").mkdir()
    with pytest.raises(ValueError, match=r"no images in the class folders of '.*train' \(cat\); expected"):
        open_split(tmp_path / "train")
    save_image(tmp_path / "train/cat/1.jpg")
    save_image(tmp_path / "train/stray.jpg")
    with pytest.raises(ValueError, match=r"images beside the class folders of '.*train'"):
        open_split(tmp_path / "train")


def test_differing_classes_are_named():
    check_same_classes(["a", "b"], ["a", "b"], "x")
    with pytest.raises(
        ValueError, match=r"splits of x differ .* training split has b; .* evaluation split has c, d"
    ):
        check_same_classes(["a", "b"], ["a", "c", "d"], "x")
    with pytest.raises(ValueError, match="training split has b; only the evaluation split has none"):
        check_same_classes(["a", "b"], ["a"], "x")


def test_names_by_index():
    assert names_by_index({"b": 1, "a": 0}) == ["a", "b"]
    assert names_by_index({"cat": 0, "kitten": 0, "dog": 2}) == ["cat / kitten", "1", "dog"]
    assert names_by_index({}) == []
