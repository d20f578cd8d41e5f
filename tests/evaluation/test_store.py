import numpy as np
import pytest

from attnmix.evaluation import store
from attnmix.evaluation.store import AnswerStore, folder_name

ANSWER = {"values": {"top-1 %": 50.0}, "tables": {"t": [{"a": 1}]}, "notes": ["n"]}
SETTINGS = {"model": "abc", "limit": None, "shifted": {"A": "a"}}


def test_an_answer_comes_back_for_its_settings(tmp_path):
    store = AnswerStore(tmp_path)
    assert store.load("m", "accuracy", SETTINGS) is None
    store.save("m", "accuracy", SETTINGS, ANSWER)
    assert AnswerStore(tmp_path).load("m", "accuracy", SETTINGS) == ANSWER
    assert store.load("other", "accuracy", SETTINGS) is None
    assert store.load("m", "noise", SETTINGS) is None


def test_arrays_come_back(tmp_path):
    store = AnswerStore(tmp_path)
    arrays = {"images": np.arange(12, dtype=np.uint8).reshape(3, 4), "map": np.ones(2, dtype=np.float16)}
    store.save("m", "pictures", SETTINGS, {**ANSWER, "arrays": arrays})
    found = store.load("m", "pictures", SETTINGS)["arrays"]
    assert found.keys() == arrays.keys()
    assert all(
        np.array_equal(found[name], arrays[name]) and found[name].dtype == arrays[name].dtype for name in arrays
    )


@pytest.mark.parametrize(
    ("change", "named"), [({"model": "xyz"}, "model 'abc', not 'xyz'"), ({"limit": 5}, "limit None, not 5")]
)
def test_an_answer_of_other_settings_is_neither_used_nor_lost(tmp_path, change, named):
    store = AnswerStore(tmp_path)
    store.save("m", "accuracy", SETTINGS, ANSWER)
    with pytest.raises(ValueError, match=f"accuracy of 'm' made with {named}.*choose another --out"):
        store.load("m", "accuracy", {**SETTINGS, **change})
    assert store.load("m", "accuracy", SETTINGS) == ANSWER


def test_an_answer_of_an_older_format_is_not_read(tmp_path, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(store, "FORMAT", store.FORMAT - 1)
        AnswerStore(tmp_path).save("m", "pictures", SETTINGS, ANSWER)
    with pytest.raises(ValueError, match=f"made with format {store.FORMAT - 1}, not {store.FORMAT}"):
        AnswerStore(tmp_path).load("m", "pictures", SETTINGS)


@pytest.mark.parametrize("text", ["", "{", '{"answer": {}}', "[]"])
def test_a_damaged_file_is_named(tmp_path, text):
    store = AnswerStore(tmp_path)
    store.save("m", "accuracy", SETTINGS, ANSWER)
    (tmp_path / "answers" / "m" / "accuracy.json").write_text(text)
    with pytest.raises(ValueError, match="accuracy.json is no answer of an evaluation, or is damaged"):
        store.load("m", "accuracy", SETTINGS)


def test_a_number_that_json_lacks_leaves_the_old_answer(tmp_path):
    store = AnswerStore(tmp_path)
    store.save("m", "accuracy", SETTINGS, ANSWER)
    with pytest.raises(ValueError, match="JSON"):
        store.save("m", "accuracy", SETTINGS, {"values": {"top-1 %": float("nan")}})
    assert store.load("m", "accuracy", SETTINGS) == ANSWER


@pytest.mark.parametrize(
    ("label", "name"), [("a/b c", "a-b-c"), ("../x", "x"), ("..", "model"), ("vit.in1k", "vit.in1k")]
)
def test_labels_as_file_names(label, name):
    assert folder_name(label) == name
