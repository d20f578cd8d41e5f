"""What is read back of a comparison's runs."""

import json
from dataclasses import fields

import pytest
import torch

from attnmix.commands.method_specs import MethodSpec
from attnmix.commands.runs import ENTRY, Entry, Run, _plain
from attnmix.commands.trained import trained_model, what_its_method_learnt
from attnmix.commands.workers import epochs_done
from attnmix.training.checkpoint import save_checkpoint
from tests.training.conftest import tiny_recipe


@pytest.fixture
def run(tmp_path):
    return Run(MethodSpec("none"), tiny_recipe(method="none"), tmp_path)


def entry_of(run, **changes):
    return {**dict.fromkeys(key.name for key in fields(Entry)), "recipe": _plain(run.recipe), **changes}


def test_an_entry_is_given_back_for_the_same_recipe(run):
    assert run.finished() is None
    (run.folder / ENTRY).write_text(json.dumps(entry_of(run, top1=5.0)))
    assert run.finished()["top1"] == 5.0
    other = {**_plain(run.recipe), "lr": 7.0}
    (run.folder / ENTRY).write_text(json.dumps(entry_of(run, recipe=other)))
    assert run.finished() is None


DAMAGED = [
    b"", b"{", b"[]", b"3", b'{"recipe": 3}', b'{"recipe": {}}', b"\xff\xfe{}", b"[" * 100_000, b'{"top1": 3.0}',
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_entry_is_made_anew(run, data):
    (run.folder / ENTRY).write_bytes(data)
    assert run.finished() is None


def test_an_entry_that_lacks_a_key_is_made_anew(run):
    whole = entry_of(run)
    del whole["confusion"]
    (run.folder / ENTRY).write_text(json.dumps(whole))
    assert run.finished() is None


def test_epochs_are_counted_whatever_the_bytes(run):
    assert epochs_done(run) == 0
    (run.folder / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n\xff\xfe\n{"epo')
    assert epochs_done(run) == 2


def test_a_damaged_export_is_said(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="no model can be made of .*delete .*, and train it again"):
        trained_model(tmp_path)


def test_a_checkpoint_without_weights_is_said(tmp_path):
    save_checkpoint(tmp_path / "checkpoint.pt", {"format": 3, "trainable": torch.ones(1)})
    with pytest.raises(ValueError, match="is whole, but holds no weights"):
        what_its_method_learnt(tmp_path, tiny_recipe(method="automix"))
