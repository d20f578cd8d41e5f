import io
import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnmix.data.label_map_writer import LabelMapWriter
from attnmix.data.label_maps import LabelMapStore
from tests.data.test_label_maps import about, random_maps, write
from tests.fuzz.trying import attempt, fuzz, mangled, plain, with_other_values

NAMES = ("maps.json", "scores.npy", "classes.npy")


@pytest.fixture
def maps(tmp_path):
    write(tmp_path / "maps")
    return tmp_path / "maps", {name: (tmp_path / "maps" / name).read_bytes() for name in NAMES}


def read_all(folder):
    store = LabelMapStore(folder)
    assert len(store) < 1000
    for index in range(len(store)):
        classes, scores = store.read(index)
        assert 0 <= int(classes.min()) <= int(classes.max()) < store.about.num_classes
        assert scores.isfinite().all()
    return store


def test_damaged_files(maps):
    folder, whole = maps

    @fuzz(200)
    @given(case=st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), mangled(whole[name]))))
    def check(case):
        for name in NAMES:
            (folder / name).write_bytes(case[1] if name == case[0] else whole[name])
        attempt("label maps: damaged", lambda: read_all(folder), names=str(folder))

    check()


def test_descriptions_of_any_values(maps):
    folder, whole = maps
    told = json.loads(whole["maps.json"])

    @fuzz(200)
    @given(told=st.one_of(with_other_values(told), plain))
    def check(told):
        (folder / "maps.json").write_text(json.dumps(told))
        attempt("label maps: descriptions", lambda: read_all(folder), names=str(folder))

    check()


def npy(header, data=bytes(240), version=2):
    words = header.encode("utf-8", "surrogatepass")
    size = len(words).to_bytes(4 if version > 1 else 2, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + words + data


SHAPES = [
    "(5, 2, 2, 3)",
    "(5,)",
    "()",
    "(0, 2, 2, 3)",
    f"({2**62},)",
    "(-1,)",
    "(5.0,)",
    "5",
    "None",
    "[5, 2, 2, 3]",
]
KINDS = ["'<f2'", "'|O'", "'<f8'", "'|V2'", "'<U1'", "[('a', '<f2')]", "'evil'", "5", "'<f2,<f2'", "('<f2', (2,))"]
HOSTILE = [
    "__import__('os').system('true')",
    "(lambda: 5)()",
    "[x for x in (1,)]",
    "{**{}}",
    "open('secret')",
    "...",
]


@fuzz(250)
@given(
    shape=st.sampled_from([*SHAPES, *HOSTILE]),
    kind=st.sampled_from([*KINDS, *HOSTILE]),
    order=st.sampled_from(["False", "True", "0", *HOSTILE]),
    more=st.sampled_from(["", ", 'x': 1", "}", "\0", "\n" * 70_000, ", 'shape': (1,)", "#"]),
    version=st.sampled_from([1, 2, 3, 9]),
)
def test_headers(tmp_path, shape, kind, order, more, version):
    folder = tmp_path / "maps"
    if not folder.exists():
        write(folder)
    header = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}{more}}}"
    if version == 1:
        header = header[:60_000]
    (folder / "scores.npy").write_bytes(npy(header, version=version))
    attempt("label maps: headers", lambda: read_all(folder), names="scores.npy")


class Code:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("kind", ["object array", "npz", "pickle"])
def test_nothing_is_unpickled(maps, kind):
    folder, _ = maps
    file = io.BytesIO()
    if kind == "object array":
        np.save(file, np.array([Code()], dtype=object), allow_pickle=True)
    elif kind == "npz":
        np.savez(file, x=np.array([Code()], dtype=object))
    else:
        pickle.dump(Code(), file)
    for name in ("scores.npy", "classes.npy"):
        (folder / name).write_bytes(file.getvalue())
        message = attempt("label maps: pickles", lambda: LabelMapStore(folder))[1]
        assert "scores.npy is damaged or cut short" in message


@pytest.mark.parametrize("name", NAMES)
def test_a_link_that_leads_out_is_refused(maps, tmp_path, name):
    folder, whole = maps
    (tmp_path / "elsewhere").write_bytes(whole[name])
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{name} leads out of its folder: copy the file itself there"):
        LabelMapStore(folder)
    (folder / name).unlink()
    (folder / "kept").write_bytes(whole[name])
    (folder / name).symlink_to("kept")  # within it
    (tmp_path / "other").symlink_to(folder)  # and the folder itself may be one
    assert len(LabelMapStore(tmp_path / "other")) == 5


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_is_not_waited_for(maps, name):
    folder, _ = maps
    (folder / name).unlink()
    os.mkfifo(folder / name)
    message = attempt("label maps: pipes", lambda: LabelMapStore(folder))[1]
    assert "is missing" in message or "there is no maps.json" in message


def test_damage_to_what_was_begun(tmp_path):
    folder, part = tmp_path / "maps", tmp_path / "maps.part"
    scores, classes = random_maps(5)
    with LabelMapWriter(folder, about(5)) as writer:
        writer.write(scores[:2], classes[:2], [True, True])
    whole = {file.name: file.read_bytes() for file in part.iterdir()}
    told = json.loads(whole["progress.json"])
    damage = st.sampled_from(sorted(whole)).flatmap(lambda name: st.tuples(st.just(name), mangled(whole[name])))
    values = st.tuples(
        st.just("progress.json"), with_other_values(told).map(lambda told: json.dumps(told).encode())
    )

    def go_on():
        with LabelMapWriter(folder, about(5)) as writer:
            return writer.done

    @fuzz(100)
    @given(case=st.one_of(damage, values))
    def check(case):
        for name, data in whole.items():
            (part / name).write_bytes(case[1] if name == case[0] else data)
        for file in part.iterdir():
            if file.name not in whole:
                file.unlink()
        done, _ = attempt("label maps: begun", go_on, names="maps.part")
        assert done is None or 0 <= done <= 5

    check()
