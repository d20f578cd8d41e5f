"""What a recipe's data_options and a data set's own files may name."""

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnmix.data import create_datasets
from attnmix.data.folder import open_folder
from attnmix.evaluation.store import folder_name
from attnmix.report.page_parts import file_names
from tests.data.conftest import save_image
from tests.fuzz.trying import attempt, fuzz, numbers, words


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        save_image(tmp_path / "images" / name / "0.jpg")
    return tmp_path / "images"


def opened(folder, class_map):
    images = open_folder(folder, options={"class_map": class_map}, transform=None)
    assert len(images.class_names) <= 1_000_000
    return images


class Code:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.pkl", pickle.dumps(Code()), "class_map .*Global posix.system is not permitted"),
        ("a.pkl", b"", "class_map .*: Ran out of input"),
        ("a.pkl", b"\x80\x04N.", "class_map .*expected a dict"),
        ("a.pkl", pickle.dumps({"cat": 10**12}), "class 'cat' has the number 1000000000000, want 0 to 999999"),
        ("a.pkl", pickle.dumps({"cat": -1}), "class 'cat' has the number -1"),
        ("a.pkl", pickle.dumps({"cat": "x"}), "class 'cat' has the number x"),
        ("a.txt", b"\xff\xfe", "class_map .*'utf-8' codec can't decode"),
        ("a.txt", b"", "no images in the class folders"),
        ("a.py", b"import canary_module", "Unsupported class map file extension"),
    ],
)
def test_class_maps(folder, tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        opened(folder, str(tmp_path / name))


def test_a_class_map_that_is_not_there(folder):
    for name in ("../../etc/none.txt", "none.pkl", "http://127.0.0.1:9/a.txt"):
        with pytest.raises(ValueError, match="Cannot locate specified class map file"):
            opened(folder, name)


@fuzz(100)
@given(class_map=st.dictionaries(st.sampled_from(["cat", "dog", "x"]) | words, numbers | words, max_size=4))
def test_class_maps_in_a_recipe(tmp_path, class_map):
    if not (tmp_path / "images").exists():
        for name in ("cat", "dog"):
            save_image(tmp_path / "images" / name / "0.jpg")
    attempt("data: class maps", lambda: opened(tmp_path / "images", class_map), names="images")


@fuzz(100)
@given(data=st.binary(max_size=30), kind=st.sampled_from([".pkl", ".txt"]))
def test_class_maps_of_any_bytes(tmp_path, data, kind):
    if not (tmp_path / "images").exists():
        save_image(tmp_path / "images" / "cat" / "0.jpg")
    (tmp_path / f"a{kind}").write_bytes(data)
    attempt("data: class maps", lambda: opened(tmp_path / "images", str(tmp_path / f"a{kind}")), names="images")


@pytest.mark.parametrize("root", ["pipe:true; cat", "pipe:cat /etc/secret; echo"])
def test_a_recipe_runs_no_pipe(root, happened):
    options = {"root": root, "train_num_samples": 4, "eval_num_samples": 4, "num_classes": 2}
    settings = {"input_size": (3, 8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3, "batch_size": 2}
    try:
        with pytest.raises(ValueError, match="pipe"):
            create_datasets("wds/x", train_split="a.tar", eval_split="b.tar", data_options=options, **settings)
        assert happened == []
    finally:
        happened.clear()


@fuzz(300)
@given(labels=st.lists(words, min_size=1, max_size=5))
def test_labels_name_no_file_elsewhere(labels):
    for name in [*file_names("figure", labels), *map(folder_name, labels)]:
        assert name not in ("", ".", "..")
        assert not set(name) & set("/\\\0:\n")
        assert not name.startswith(".")
