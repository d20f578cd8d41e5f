import os

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from attnmix.benchmark.memory import peak_allocated, saved_for_backward

CPU = torch.device("cpu")
MIB = 2**20


def floats(mib):
    return torch.empty(mib * MIB // 4)


def test_the_peak_is_the_most_at_one_time():
    def freed_between():
        floats(8)  # dropped at once
        floats(4)

    def held():
        first = floats(8)
        return first, floats(4)

    assert peak_allocated(freed_between, CPU) == 8 * MIB
    assert peak_allocated(held, CPU) == 12 * MIB
    assert peak_allocated(lambda: None, CPU) == 0


def test_what_was_allocated_before_does_not_count():
    before = [floats(16)]
    assert peak_allocated(lambda: floats(2), CPU) == 2 * MIB

    def swap():
        before.clear()
        return floats(2)

    assert peak_allocated(swap, CPU) == 2 * MIB


def test_blocks_inside_an_operator_count():
    values = torch.rand(MIB)
    assert peak_allocated(lambda: values.sort().values, CPU) >= 12 * MIB  # values in float32, indices in int64


def test_the_backward_pass_counts():
    values = torch.rand(MIB, requires_grad=True)
    forward = peak_allocated(lambda: values.exp(), CPU)
    assert forward == 4 * MIB
    assert peak_allocated(lambda: values.exp().sum().backward(), CPU) > forward


def test_stderr_loses_the_profilers_lines_only(capfd):
    peak_allocated(lambda: os.write(2, b"a word of the action's\n"), CPU)
    assert capfd.readouterr().err == "a word of the action's\n"


def test_an_error_in_the_action_passes_and_stderr_is_back(capfd):
    def broken():
        raise ArithmeticError("on purpose")

    with pytest.raises(ArithmeticError, match="on purpose"):
        peak_allocated(broken, CPU)
    os.write(2, b"here\n")
    assert capfd.readouterr().err == "here\n"
    assert peak_allocated(lambda: floats(1), CPU) == MIB


def test_a_device_without_a_count_is_refused():
    with pytest.raises(ValueError, match="memory on 'meta' cannot be measured, only on cpu and cuda"):
        peak_allocated(lambda: None, torch.device("meta"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_peak_on_a_gpu():
    def freed_between():
        torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")

    before = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    assert peak_allocated(freed_between, torch.device("cuda")) == 8 * MIB
    del before


def test_saved_storages_count_once_and_known_ones_not():
    values = torch.rand(MIB, requires_grad=True)

    def forward():
        return (values * values).exp()  # keeps `values` twice and the result of exp

    assert saved_for_backward(forward) == 8 * MIB
    assert saved_for_backward(forward, known=[values]) == 4 * MIB
    assert saved_for_backward(forward, known=[values.view(2, -1)[1]]) == 4 * MIB  # a view has the same storage


def test_a_view_counts_as_its_whole_storage():
    values = torch.rand(MIB, requires_grad=True)
    assert saved_for_backward(lambda: values[: MIB // 4].square()) == 4 * MIB


def test_nothing_is_kept_without_gradient():
    values = torch.rand(MIB, requires_grad=True)

    def forward():
        with torch.no_grad():
            values.exp()

    assert saved_for_backward(forward) == 0


def test_graphs_that_are_gone_do_not_add_up():
    values = torch.rand(MIB, requires_grad=True)

    def two():
        for _ in range(2):
            values.exp().sum().backward()

    assert saved_for_backward(two) == 4 * MIB
    assert saved_for_backward(lambda: (values.exp(), values.exp())) == 8 * MIB


def test_gradients_are_the_same_under_the_count():
    layer = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5))
    inputs = torch.rand(3, 6)

    def step():
        layer.zero_grad()
        layer(inputs).square().sum().backward()

    step()
    plain = [parameter.grad.clone() for parameter in layer.parameters()]
    assert saved_for_backward(step, known=[*layer.parameters(), inputs]) > 0
    for parameter, expected in zip(layer.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=0)


def test_recomputing_keeps_less():
    block = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    inputs = torch.rand(32, 64, requires_grad=True)
    known = [*block.parameters(), inputs]
    assert saved_for_backward(lambda: block(inputs), known=known) == 2 * 32 * 256 * 4  # into and out of the GELU
    assert saved_for_backward(lambda: checkpoint(block, inputs, use_reentrant=False), known=known) == 0
