import random

import numpy as np
import torch

from attnmix.training.checkpoint import load_checkpoint, save_checkpoint
from attnmix.training.random_states import get_rng_state, set_rng_state

CPU = torch.device("cpu")


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
