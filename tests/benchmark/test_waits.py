import warnings

import pytest
import torch

from attnmix.benchmark.waits import SAYS, count_waits


def test_without_a_gpu_nothing_can_be_counted():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="waits are counted on a GPU"):
        count_waits(lambda: None)


def test_each_warning_counts_also_the_same_one_again_and_no_other(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def action():
        for _ in range(3):
            warnings.warn(SAYS, stacklevel=1)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    assert count_waits(action) == 3
    assert modes == ["warn", 0]


@pytest.mark.gpu
def test_a_copy_back_is_a_wait():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    tensor = torch.ones(3, device="cuda")
    assert count_waits(lambda: (tensor.sum().item(), tensor.cpu())) == 2
    assert count_waits(lambda: tensor.sum()) == 0
