import copy
import ctypes
import dataclasses
import io
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from attnmix.commands.sources import find_sources
from attnmix.commands.subjects import open_subject
from attnmix.training import train
from attnmix.training.checkpoint import load_checkpoint, load_latest, previous_of, save_checkpoint
from attnmix.training.soundness import unsound_weight
from tests.fuzz.trying import attempt, fuzz, mangled, plain, with_other_values
from tests.training.conftest import tiny_recipe

RECIPE = dataclasses.replace(tiny_recipe(), checkpoint_minutes=0.0, epochs=2, trackers=[])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two epochs: its last checkpoint is of its end, the one before of the middle of the second."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train(RECIPE, folder, progress=False)
    assert load_checkpoint(previous_of(folder / "checkpoint.pt"))["batch"] > 0
    return folder


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        same = type(one) is type(other) and len(one) == len(other)
        return same and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return one == other


# ------------------------------------------------------------------ bytes


def test_damage_is_noticed_or_harmless(run, tmp_path):
    whole = (run / "checkpoint.pt").read_bytes()
    path = tmp_path / "checkpoint.pt"
    kept = load_checkpoint(run / "checkpoint.pt")

    @fuzz(250)
    @given(data=mangled(whole))
    def check(data):
        path.write_bytes(data)
        found, _ = attempt("checkpoints: mangled", lambda: load_checkpoint(path), names=str(path))
        assert found is None or equal(found, kept)

    check()


def test_any_flipped_bit_of_the_weights_is_noticed(run, tmp_path):
    """torch reads over them: its zip reader compares no checksums."""
    whole = (run / "checkpoint.pt").read_bytes()
    path = tmp_path / "checkpoint.pt"
    with zipfile.ZipFile(run / "checkpoint.pt") as archive:
        parts = [part for part in archive.infolist() if "/data/" in part.filename and part.file_size]
    for number, part in list(enumerate(parts))[::3]:
        data = bytearray(whole)
        head = part.header_offset
        name, extra = struct.unpack("<HH", data[head + 26 : head + 30])
        data[head + 30 + name + extra + part.file_size // 2] ^= 1 << number % 8
        path.write_bytes(data)
        assert torch.load(path, weights_only=True)["format"] == 3
        message = attempt("checkpoints: a bit", lambda: load_checkpoint(path))[1]
        assert f"its part {part.filename} is damaged" in message
    os.link(run / "checkpoint.previous.pt", previous_of(path))
    state, notice = load_latest(tmp_path)
    assert state["batch"] > 0
    assert "is damaged: going on from the one before" in notice


@fuzz(60)
@given(data=st.binary(max_size=200))
def test_any_bytes(tmp_path, data):
    (tmp_path / "checkpoint.pt").write_bytes(data)
    assert attempt("checkpoints: any bytes", lambda: load_checkpoint(tmp_path / "checkpoint.pt"))[0] is None


# ------------------------------------------------------------------ code


class Call:
    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


CODE = {
    "a shell": Call(os.system, "true"),
    "exec": Call(exec, "raise SystemExit('ran')"),
    "eval": Call(eval, "1/0"),
    "a file": Call(open, "secret.txt", "w"),
    "another load": Call(torch.load, "secret.pt"),
    "a module": Call(__import__, "canary_module"),
    "getattr": Call(getattr, Call(__import__, "os"), "system"),
    "an extension": Call(ctypes.CDLL, "secret.so"),
    "memory": Call(bytearray, 2**42),  # torch takes this one
    "a tensor's memory": Call(torch.FloatTensor, 2**40),
    "unpickling": Call(pickle.loads, pickle.dumps(Call(os.system, "true"))),
}


@pytest.mark.parametrize("what", CODE)
@pytest.mark.parametrize("protocol", [2, 4])
def test_no_code_is_run(tmp_path, what, protocol):
    path = tmp_path / "checkpoint.pt"
    state = {"format": 3, "recipe": {}, "trainable": {"x": torch.ones(2), "y": CODE[what]}}
    torch.save(state, path, pickle_protocol=protocol)
    message = attempt("checkpoints: code", lambda: load_checkpoint(path), names=str(path))[1]
    assert "cannot be read as a checkpoint: it names" in message
    path.write_bytes(pickle.dumps(state["trainable"]["y"], protocol))
    assert "cannot be read as a checkpoint" in attempt("checkpoints: code", lambda: load_checkpoint(path))[1]


# ------------------------------------------------------------------ other files


def archive_of(parts, kind=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_members_that_lead_elsewhere(run, tmp_path):
    with zipfile.ZipFile(run / "checkpoint.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    path = tmp_path / "in" / "checkpoint.pt"
    path.parent.mkdir()
    first = next(name for name in parts if "/data/" in name)
    for other in ("../../secret", "/secret", "checkpoint/../../secret", "checkpoint\\..\\secret", "C:secret"):
        for names in ({**parts, other: b"x"}, {other if name == first else name: d for name, d in parts.items()}):
            path.write_bytes(archive_of(names))
            attempt("checkpoints: members", lambda: load_checkpoint(path))
    assert [file.name for file in (tmp_path / "in").iterdir()] == ["checkpoint.pt"]


def test_other_formats(run, tmp_path):
    state = load_checkpoint(run / "checkpoint.pt")
    with zipfile.ZipFile(run / "checkpoint.pt") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    path = tmp_path / "checkpoint.pt"

    def refused(data=None):
        if data is not None:
            path.write_bytes(data)
        return attempt("checkpoints: other formats", lambda: load_checkpoint(path), names=str(path))[1]

    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert "cannot be read" in refused()
    assert "compressed" in refused(archive_of(parts, zipfile.ZIP_DEFLATED))  # torch would unpack any amount
    save_file({"x": torch.ones(2)}, path)
    assert "cannot be read" in refused()
    np.savez(tmp_path / "x.npz", x=np.ones(3))
    assert "cannot be read" in refused((tmp_path / "x.npz").read_bytes())
    with tarfile.open(path, "w") as archive:
        archive.add(run / "recipe.yaml", "storages")
    assert "cannot be read" in refused()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    assert refused()
    for whole in ([], 3, {"format": torch.tensor([3, 3])}, {"format": "3"}, {"format": True}, {"format": 4}):
        torch.save(whole, path)
        assert "is not a checkpoint of attnmix in format 3" in refused()


# ------------------------------------------------------------------ what is in it


def _resumed(saved, folder, force=False):
    folder.mkdir(exist_ok=True)
    save_checkpoint(folder / "checkpoint.pt", saved)
    previous_of(folder / "checkpoint.pt").unlink(missing_ok=True)
    recipe = dataclasses.replace(RECIPE, checkpoint_minutes=None)
    return train(recipe, folder, resume=True, force=force, progress=False)


WRONG = {
    "no key": (lambda s: s.pop("history"), "its history cannot be None"),
    "a list": (lambda s: s.update(recipe=[1]), "its recipe cannot be <class 'list'>"),
    "no recipe": (lambda s: s.pop("recipe"), "its recipe cannot be"),
    "tensors in the recipe": (lambda s: s["recipe"].update(lr=torch.ones(2)), "a Tensor: want words"),
    "words": (lambda s: s.update(epoch="1"), "its epoch cannot be '1'"),
    "below zero": (lambda s: s.update(batch=-1), "its batch cannot be -1"),
    "huge": (lambda s: s.update(updates=2**70), "its updates cannot be"),
    "entries": (lambda s: s["history"][0].pop("seconds"), "its history cannot be"),
    "not finite": (lambda s: s["history"][0].update(seconds=float("nan")), "its history cannot be"),
    "ema": (lambda s: s.pop("ema"), "its ema cannot be"),
    "shape": (lambda s: _first(s["trainable"], torch.ones(3)), "not of this model.*size mismatch"),
    "no tensor": (lambda s: _first(s["trainable"], [1.0]), "not of this model"),
    "moments": (
        lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.ones(3)),
        "optimizer's exp_avg cannot be",
    ),
    "rate": (lambda s: s["optimizer"]["param_groups"][0].update(lr="high"), "optimizer's lr cannot be 'high'"),
    "options": (lambda s: s["optimizer"]["param_groups"][0].pop("betas"), "optimizer's betas cannot be None"),
    "groups": (lambda s: s["optimizer"].pop("param_groups"), "not of this model.*param_groups"),
    "rng": (lambda s: s["per_process"][0].pop("rng"), "not of this model.*rng"),
    # NumPy would read on behind its 624 numbers
    "far rng": (lambda s: s["per_process"][0]["rng"]["numpy"].__setitem__(1, 10**6), "its rng cannot be 1000000"),
    "torch rng": (lambda s: s["per_process"][0]["rng"].update(torch=torch.ones(3)), "not of this model"),
    "draws": (lambda s: s["per_process"][0].update(generator=5), "not of this model"),
    "sums": (lambda s: s["per_process"][0]["sums"].update(images="many"), "its images cannot be 'many'"),
    "accuracy": (
        lambda s: s["per_process"][0]["sums"]["accuracy"].update(tp=torch.ones(3)),
        "its accuracy cannot be",
    ),
    "summed": (
        lambda s: s["per_process"][0]["sums"]["sums"].update(train_loss=torch.ones(3)),
        "its sums cannot be",
    ),
    "processes": (lambda s: s.update(per_process=[[]]), "its per_process cannot be"),
}


def _asks_no_more(state):
    """A recipe may ask for more images or a larger model than there is time for: that is no fault of the file."""
    recipe = state.get("recipe")
    kept = tiny_recipe()
    return not isinstance(recipe, dict) or all(
        recipe.get(name, {}) in ({}, getattr(kept, name)) for name in ("model_options", "data_options")
    )


def _first(tensors, value):
    tensors[next(iter(tensors))] = value


@pytest.mark.parametrize("wrong", WRONG)
def test_a_whole_file_of_something_else(run, tmp_path, wrong):
    saved = load_checkpoint(previous_of(run / "checkpoint.pt"))
    change, message = WRONG[wrong]
    change(saved)
    with pytest.raises(ValueError, match=message):
        _resumed(saved, tmp_path / "run")


@pytest.mark.slow
def test_a_run_goes_on_or_says_why_not(run, tmp_path):
    saved = load_checkpoint(previous_of(run / "checkpoint.pt"))
    tensors = st.sampled_from([torch.ones(3), torch.zeros(0), torch.ones(2, 2).long(), torch.tensor(float("nan"))])

    @fuzz(60)
    @given(
        state=with_other_values(saved, st.one_of(plain, tensors), most=1).filter(_asks_no_more),
        force=st.booleans(),
    )
    def check(state, force):
        attempt(
            "checkpoints: of other values",
            lambda: _resumed(copy.deepcopy(state), tmp_path / "run", force),
            errors=(ValueError, FloatingPointError),
        )

    check()


def test_the_evaluation_of_such(run, tmp_path):
    saved = load_checkpoint(run / "checkpoint.pt")
    folder = tmp_path / "run"
    folder.mkdir()

    @fuzz(25)
    @given(state=with_other_values({**saved, "optimizer": {}, "per_process": []}, most=1).filter(_asks_no_more))
    def check(state):
        save_checkpoint(folder / "checkpoint.pt", state)

        def evaluated():
            (source,) = find_sources([str(folder)])
            return open_subject(source, device=torch.device("cpu"))

        found, _ = attempt("checkpoints: evaluated", evaluated)
        assert found is None or unsound_weight(found.model) is None

    check()
