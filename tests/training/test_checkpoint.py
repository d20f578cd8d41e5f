import os

import pytest
import torch

from attnmix.training.checkpoint import (
    has_checkpoint,
    load_checkpoint,
    load_latest,
    previous_of,
    save_checkpoint,
)


def test_a_damaged_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"cannot be read as a checkpoint"):
        load_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"checkpoint.pt cannot be read as a checkpoint: it is empty"):
        load_checkpoint(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match=r"is not a checkpoint of attnmix in format 3"):
        load_checkpoint(path)


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    torch.save({"format": 3, "x": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"cannot be read as a checkpoint"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"epoch": 1})

    def crash(state, file):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", crash)
    with pytest.raises(
        OSError, match=r"cannot be written \(disk full\); the last whole checkpoint is .*checkpoint.pt"
    ):
        save_checkpoint(path, {"epoch": 2})
    assert load_checkpoint(path)["epoch"] == 1
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


@pytest.mark.parametrize("links", [True, False])
def test_the_last_two_are_kept(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise OSError("no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "checkpoint.pt"
    for epoch in (1, 2, 3):
        save_checkpoint(path, {"epoch": epoch})
    assert load_checkpoint(path)["epoch"] == 3
    assert load_checkpoint(previous_of(path))["epoch"] == 2
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_a_damaged_one_gives_way_to_the_one_before(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"epoch": 1})
    save_checkpoint(path, {"epoch": 2})
    assert load_latest(tmp_path)[1] is None
    path.write_bytes(path.read_bytes()[:-100])
    state, notice = load_latest(tmp_path)
    assert state["epoch"] == 1
    assert "cannot be read as a checkpoint" in notice
    assert "going on from the one before" in notice
    path.unlink()  # a crash between two moves, where there are no hard links
    assert has_checkpoint(tmp_path)
    assert load_latest(tmp_path)[0]["epoch"] == 1
    previous_of(path).write_bytes(b"as bad")
    with pytest.raises(ValueError, match=r"checkpoint.previous.pt cannot be read"):
        load_latest(tmp_path)


def test_a_checkpoint_of_the_format_before_is_read(tmp_path):
    torch.save({"format": 2, "epoch": 4}, tmp_path / "checkpoint.pt")
    assert load_checkpoint(tmp_path / "checkpoint.pt")["epoch"] == 4
