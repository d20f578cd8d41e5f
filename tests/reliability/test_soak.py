"""Two thousand steps: memory stays, and nothing is left open."""

import gc
import os
import threading

import pytest
import torch

import attnmix
from attnmix.training import train
from tests.training.conftest import tiny_recipe

STEPS, WARM = 2000, 500
SLACK = 24e6  # bytes: what an allocator moves to and fro


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by /proc")
@pytest.mark.parametrize("method", ["smmix", "tl-align"])
def test_memory_files_and_threads_stay(tmp_path, monkeypatch, method):
    memory, allocated = [], []

    class Watched(attnmix.MixTask):
        def forward(self, *args, **kwargs):
            memory.append(resident())
            if torch.cuda.is_available():
                allocated.append(torch.cuda.memory_allocated())
            return super().forward(*args, **kwargs)

    monkeypatch.setattr(attnmix, "MixTask", Watched)
    train(tiny_recipe(method=method, epochs=1), tmp_path / "first", progress=False)  # opens what stays open
    gc.collect()
    memory.clear()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    epochs = STEPS // 25
    recipe = tiny_recipe(
        method=method, epochs=epochs, batch_size=8, ema=0.99, data_options={"train_count": 200},
        device="auto", schedule={"warmup_epochs": 1},
    )  # fmt: skip
    train(recipe, tmp_path / "long", progress=False)
    assert len(memory) == STEPS
    gc.collect()
    warm, last = max(memory[:WARM]), max(memory[-WARM:])
    print(f"{method}: {STEPS} steps, resident memory {warm / 1e6:.0f} MB at first, {last / 1e6:.0f} MB at last")
    assert last - warm < SLACK
    if allocated:
        assert max(allocated[-WARM:]) <= 1.01 * max(allocated[:WARM])
    assert len(os.listdir("/proc/self/fd")) <= files
    assert threading.active_count() <= threads
