import pytest
import torch

from attnmix.benchmark.device import chosen_device, pinned_threads


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen_device("auto") == torch.device("cuda")


def test_a_name_is_that_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device("cpu") == torch.device("cpu")
    assert chosen_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "device is 'tpu', but must be auto, cpu, cuda or cuda:N"),
        ("cuda:", "device is 'cuda:', but must be"),
        ("cuda:2", "device is 'cuda:2', but torch sees 2 CUDA devices here; use auto or cpu"),
    ],
)
def test_other_names_are_refused(monkeypatch, name, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=message):
        chosen_device(name)


def test_threads_are_given_back_after_an_error_too():
    def broken():
        assert torch.get_num_threads() == 2
        raise ArithmeticError

    with pytest.raises(ArithmeticError), pinned_threads(2):
        broken()
    assert torch.get_num_threads() == 1


def test_fewer_threads_than_one_are_refused():
    with pytest.raises(ValueError, match="threads is 0, but must be 1 or more"), pinned_threads(0):
        pass
