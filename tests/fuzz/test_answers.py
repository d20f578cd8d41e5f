import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnmix.evaluation import store as stores
from attnmix.evaluation.store import AnswerStore
from attnmix.report import write_evaluation
from tests.fuzz.trying import attempt, fuzz, mangled, plain, with_other_values

SETTINGS = {"model": "abc", "limit": None, "shifted": {"A": "a"}}
ANSWER = {
    "values": {"top-1 %": 50.0, "loss": None},
    "tables": {"classes": [{"class": "a", "top-1 %": 1.5, "images": 3}]},
    "notes": ["a note"],
    "images": 3,
    "skipped": ["x.jpg"],
    "seconds": 1.5,
}
ARRAYS = {"images": np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3), "map": np.ones((1, 2, 2), np.float16)}


@pytest.fixture
def kept(tmp_path):
    store = AnswerStore(tmp_path)
    store.save("m", "accuracy", SETTINGS, {**ANSWER, "arrays": ARRAYS})
    return store, tmp_path / "answers" / "m" / "accuracy.json"


def loaded_and_shown(store, out, show):
    """An answer that is taken can be shown: the report is written of all that were kept."""
    answer = store.load("m", "accuracy", SETTINGS)
    arrays = answer.pop("arrays")
    assert all(array.dtype.kind in "biuf" for array in arrays.values())
    if show:
        write_evaluation({"questions": {"accuracy": {"answers": {"m": answer}}}}, {}, out)
    return answer


def test_answers_of_any_values(kept, tmp_path):
    store, path = kept
    told = json.loads(path.read_text())
    taken = []

    @fuzz(150)
    @given(text=st.one_of(with_other_values(told, most=3).map(json.dumps), plain.map(json.dumps)))
    def check(text):
        path.write_text(text)
        found, _ = attempt(
            "answers: of other values",
            lambda: loaded_and_shown(store, tmp_path / "out", len(taken) < 10),
            names=str(path),
        )
        if found is not None and json.loads(text) != told:
            taken.append(text)

    check()


def test_damaged_answers(kept, tmp_path):
    store, path = kept
    whole, arrays = path.read_bytes(), path.with_suffix(".npz").read_bytes()

    @fuzz(150)
    @given(data=st.tuples(st.one_of(st.just(whole), mangled(whole)), st.one_of(st.just(arrays), mangled(arrays))))
    def check(data):
        path.write_bytes(data[0])
        path.with_suffix(".npz").write_bytes(data[1])
        attempt(
            "answers: damaged", lambda: loaded_and_shown(store, tmp_path / "out", False), names=str(path.parent)
        )

    check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": []}, "accuracy.json is no answer"),  # was an AttributeError
        ({"answer": []}, "accuracy.json is no answer"),
        ({"answer": {"values": [1]}}, "accuracy.json is no answer"),
        ({"answer": {"tables": {"a": [1]}}}, "accuracy.json is no answer"),
        ({"answer": {"notes": "a note"}}, "accuracy.json is no answer"),
        ({"answer": {"skipped": [1]}}, "accuracy.json is no answer"),
        ({"answer": {"values": {"a": float("nan")}}}, "accuracy.json is no answer"),
        ({"answer": {"arrays": {}}}, "accuracy.json is no answer"),
    ],
)
def test_what_no_report_can_show(kept, changes, message):
    store, path = kept
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=message):
        store.load("m", "accuracy", SETTINGS)


def test_pictures_that_are_none(kept, monkeypatch):
    store, path = kept
    arrays = path.with_suffix(".npz")

    def refused(message):
        with pytest.raises(ValueError, match=f"accuracy.npz is damaged .*{message}.*: delete it"):
            store.load("m", "accuracy", SETTINGS)

    np.savez(arrays, x=np.array([{}], dtype=object))
    refused("allow_pickle=False")
    np.savez(arrays, x=np.array(["words"]))
    refused("something else than numbers")
    np.save(arrays.with_suffix(".npy"), np.ones(3))
    arrays.with_suffix(".npy").rename(arrays)
    refused("not a zip file")
    monkeypatch.setattr(stores, "MOST_BYTES", 10_000)
    np.savez_compressed(arrays, x=np.zeros(2000))
    assert arrays.stat().st_size < 1000
    refused("more than 10000 bytes")
    with zipfile.ZipFile(arrays, "w") as archive:
        archive.writestr("../../secret.npy", b"x")
    attempt("answers: members", lambda: store.load("m", "accuracy", SETTINGS))
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="accuracy.json is no answer"):
        store.load("m", "accuracy", SETTINGS)
