import random

import numpy as np
import pytest
import torch

from attnmix.training import train
from attnmix.training.checkpoint import get_rng_state, load_checkpoint, save_checkpoint, set_rng_state
from attnmix.training.loop import has_checkpoint

CPU = torch.device("cpu")


def same(first, second):
    """Whether two nests of dictionaries, lists and tensors are equal to the bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


class Stop(Exception):
    pass


def interrupt_after(monkeypatch, epochs):
    """Make the run end as by Ctrl-C right after the checkpoint of an epoch."""
    from attnmix.training import loop

    save = loop.save_run

    def save_and_stop(path, task, optimizer, position, **options):
        save(path, task, optimizer, position, **options)
        if position.epoch == epochs:
            raise Stop

    monkeypatch.setattr(loop, "save_run", save_and_stop)


def untimed(state):
    times = ("seconds", "images_per_second")
    history = [{k: v for k, v in entry.items() if k not in times} for entry in state["history"]]
    return {**state, "history": history}


@pytest.mark.parametrize(
    ("method", "repeats", "cooldown"), [("none", 1, 0), ("smmix", 1, 0), ("cutmix", 3, 1), ("cutmix", 2, 3)]
)
def test_resuming_is_exact(tiny, tmp_path, monkeypatch, method, repeats, cooldown):
    """Four epochs in one go, and two and two: weights, average, optimizer, draws, metrics, to the bit."""
    recipe = tiny(
        method=method,
        epochs=4,
        aug_repeats=repeats,
        schedule={"cooldown_epochs": cooldown},
        ema=0.9,
        accumulation_steps=2,
        augment={"no_aug": False, "hflip": 0.5, "re_prob": 0.5},
        model_options={"drop_path_rate": 0.3, "drop_rate": 0.1},
    )
    straight = train(recipe, tmp_path / "straight", progress=False)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        with pytest.raises(Stop):
            train(recipe, tmp_path / "resumed", progress=False)
    torch.rand(3), random.random(), np.random.rand()  # another process's generators stand elsewhere
    resumed = train(recipe, tmp_path / "resumed", resume=True, progress=False)

    first, second = (load_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("straight", "resumed"))
    assert same(untimed(first), untimed(second))
    assert resumed.confusion == straight.confusion
    assert len((tmp_path / "resumed" / "metrics.jsonl").read_text().splitlines()) == 4
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("straight", "resumed")]
    assert weights[0] == weights[1]


def test_resuming_a_finished_run_measures_it_again(tiny, tmp_path):
    first = train(tiny(), tmp_path, progress=False)
    again = train(tiny(), tmp_path, resume=True, progress=False)
    assert again.confusion == first.confusion
    assert again.history == first.history


def test_more_epochs_extend_a_run(tiny, tmp_path):
    train(tiny(epochs=2), tmp_path, progress=False)
    longer = train(tiny(epochs=4), tmp_path, resume=True, progress=False)
    assert [entry["epoch"] for entry in longer.history] == [1, 2, 3, 4]
    assert longer.history[2]["lr"] > longer.history[1]["lr"]  # by the longer cosine


def test_checkpoint_every(tiny, tmp_path, monkeypatch):
    from attnmix.training import loop

    epochs = []
    monkeypatch.setattr(
        loop, "save_run", lambda path, task, optimizer, position, **_: epochs.append(position.epoch)
    )
    train(tiny(epochs=5, checkpoint_every=2), tmp_path, progress=False)
    assert epochs == [2, 4, 5]


def test_nothing_to_resume(tiny, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"nothing to resume: there is no checkpoint at .*start without --resume"
    ):
        train(tiny(), tmp_path, resume=True)


def test_a_folder_that_holds_a_run(tiny, tmp_path):
    train(tiny(epochs=1), tmp_path, progress=False)
    assert has_checkpoint(tmp_path)
    with pytest.raises(FileExistsError, match=r"already holds a run: add --resume .* or choose another --out"):
        train(tiny(epochs=1), tmp_path)


def test_a_changed_recipe_is_refused(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    with pytest.raises(
        ValueError, match=r"cannot resume .* another recipe: lr was 0.002 and is now 0.1; set it back"
    ):
        train(tiny(lr=0.1), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"optimizer.weight_decay was 0.05 and is now 0.1"):
        train(tiny(optimizer={"weight_decay": 0.1}), tmp_path, resume=True)
    train(tiny(threads=None, eval_every=2, loader={"pin": False}), tmp_path, resume=True, progress=False)


def test_a_key_newer_than_the_checkpoint_had_its_default(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    assert saved["recipe"].pop("aug_repeats") == 1
    save_checkpoint(tmp_path / "checkpoint.pt", saved)
    train(tiny(), tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match=r"aug_repeats was 1 and is now 2"):
        train(tiny(aug_repeats=2, augment={"no_aug": False}), tmp_path, resume=True)


def test_fewer_epochs_than_done_are_refused(tiny, tmp_path):
    train(tiny(epochs=2), tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"the run in .* already has 2 epochs; epochs is 1"):
        train(tiny(epochs=1), tmp_path, resume=True)


def test_another_number_of_processes_is_refused(tiny, tmp_path):
    train(tiny(), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    assert saved["num_processes"] == 1
    save_checkpoint(tmp_path / "checkpoint.pt", {**saved, "num_processes": 8})
    with pytest.raises(
        ValueError, match=r"cannot resume .* with 1 processes: it was made with 8, .* start as many"
    ):
        train(tiny(), tmp_path, resume=True)


def test_the_processes_give_no_weights_to_gather(tiny, tmp_path):
    train(tiny(method="smmix", method_options={"token_head": True}), tmp_path, progress=False)
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    assert [set(own) for own in saved["per_process"]] == [{"rng", "generator"}]
    assert any(name.startswith("method.") for name in saved["trainable"])


def test_a_damaged_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"cannot be read as a checkpoint"):
        load_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"checkpoint.pt cannot be read as a checkpoint: it is empty"):
        load_checkpoint(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match=r"is not a checkpoint of attnmix in format 2"):
        load_checkpoint(path)


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    torch.save({"format": 2, "x": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"cannot be read as a checkpoint"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"epoch": 1})

    def crash(state, file):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", crash)
    with pytest.raises(OSError, match=r"disk full"):
        save_checkpoint(path, {"epoch": 2})
    assert load_checkpoint(path)["epoch"] == 1


def test_random_states_come_back_through_a_file(tmp_path):
    random.gauss(0, 1), np.random.randn()  # both now keep half a pair
    save_checkpoint(tmp_path / "c.pt", {"rng": get_rng_state(CPU)})

    def draw():
        return torch.rand(2).tolist(), random.gauss(0, 1), random.random(), np.random.randn(3).tolist()

    expected = draw()
    assert draw() != expected
    set_rng_state(load_checkpoint(tmp_path / "c.pt")["rng"], CPU)
    assert draw() == expected


def test_only_the_runs_own_gpu_is_saved_and_restored(monkeypatch):
    states = {"cuda:1": torch.tensor([1], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[str(device)])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({str(device): state}))
    saved = get_rng_state(torch.device("cuda:1"))
    set_rng_state(saved, torch.device("cuda:0"))  # the run goes on on another one
    assert states["cuda:0"] is states["cuda:1"]
    set_rng_state(saved, CPU)
    set_rng_state(get_rng_state(CPU), torch.device("cuda:1"))
    assert len(states) == 2
