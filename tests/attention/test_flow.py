import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnmix.attention.call import SoftmaxCall
from attnmix.attention.flow import (
    ChannelAttention,
    ClassAttention,
    Join,
    Merge,
    PoolAttention,
    ReducedAttention,
    SequenceAttention,
    WindowAttention,
    attention_steps,
    share_out,
)
from attnmix.attention.trace import Journey


def attention(batch, queries, keys):
    """Head-mean attention and what carries values over it."""
    matrix = torch.randn(batch, queries, keys).softmax(dim=-1)
    return matrix, lambda values: (matrix @ values[:, :, None])[:, :, 0]


def test_tokens_join_in_front_with_the_value_given():
    values = Join(2).apply(torch.tensor([[0.1, 0.2], [0.3, 0.4]]), torch.tensor([0.5, 0.6]))
    assert values.equal(torch.tensor([[0.5, 0.5, 0.1, 0.2], [0.6, 0.6, 0.3, 0.4]]))


def test_sequence_attention_averages_with_the_own_value_unless_told_not_to():
    values = torch.rand(2, 7)
    matrix, attend = attention(2, 7, 7)
    step = SequenceAttention((2, 3), 1)
    assert step.shape == (7, 7)
    assert torch.allclose(step.carry(values, attend), (values + attend(values)) / 2)
    assert step.carry(values, attend, False).equal(attend(values))
    assert SequenceAttention((2, 3), 1, skips=False).carry(values, attend).equal(attend(values))


@pytest.mark.parametrize(
    ("grid", "kernel", "stride", "padding", "completes"),
    [
        ((4, 6), 2, 2, 0, False),  # PVT
        ((5, 7), 2, 2, 0, False),  # the same, with leftovers
        ((6, 8), 3, 2, 1, False),  # PVT v2
        ((5, 8), 3, 2, 1, False),
        ((5, 7), 2, 2, 0, True),  # Swin, odd sides
        ((4, 6), 2, 2, 0, True),
    ],
)
def test_merging_is_the_mean_of_what_the_convolution_reads(grid, kernel, stride, padding, completes):
    step = Merge(grid, (kernel,) * 2, (stride,) * 2, (padding,) * 2, completes)
    values = torch.rand(2, math.prod(grid))
    found = step.apply(values, torch.zeros(2)).unflatten(1, step.merged_grid)
    convolution = nn.Conv2d(1, 1, kernel, stride, padding, bias=False)
    nn.init.ones_(convolution.weight)
    fill = (0, grid[1] % 2, 0, grid[0] % 2) if completes else (0, 0, 0, 0)
    with torch.no_grad():
        total = convolution(F.pad(values.unflatten(1, grid)[:, None], fill))[:, 0]
        count = convolution(F.pad(torch.ones(2, 1, *grid), fill))[:, 0]
    assert found.shape == total.shape
    assert torch.allclose(found, total / count)


def test_reduced_keys_are_means_of_cells_and_leftovers_are_dropped():
    values = torch.rand(1, 15)
    step = ReducedAttention((3, 5), (1, 2), (2, 2))
    seen = []
    matrix, attend = attention(1, 15, 2)
    after = step.carry(values, lambda keys: (seen.append(keys), attend(keys))[1])
    image = values.view(3, 5)
    assert torch.allclose(seen[0][0], torch.stack([image[:2, :2].mean(), image[:2, 2:4].mean()]))
    assert torch.allclose(after, (values + attend(seen[0])) / 2)
    assert step.shape == (15, 2)
    assert step.fold(torch.rand(4, 2)).shape == (4, 1, 2)


def test_adaptively_reduced_keys():
    values = torch.rand(1, 12)
    step = ReducedAttention((3, 4), (2, 2))
    seen = []
    step.carry(values, lambda keys: (seen.append(keys), torch.zeros(1, 12))[1])
    image = values.view(3, 4)
    cells = [image[:2, :2].mean(), image[:2, 2:].mean(), image[1:, :2].mean(), image[1:, 2:].mean()]
    assert torch.allclose(seen[0][0], torch.stack(cells))


def test_class_attention_changes_the_class_token_alone():
    values = torch.rand(2, 7)
    matrix, attend = attention(2, 1, 7)
    step = ClassAttention((2, 3))
    after = step.carry(values, attend)
    assert after[:, 1:].equal(values[:, 1:])
    assert torch.allclose(after[:, :1], (values[:, :1] + attend(values)) / 2)
    assert step.carry(values, attend, False)[:, :1].equal(attend(values))
    assert step.shape == (1, 7)


def test_a_pool_leaves_its_own_value_also_with_residual():
    values = torch.rand(2, 8)
    _, attend = attention(2, 1, 6)
    step = PoolAttention((2, 3), 0, drops=2)
    assert step.shape == (1, 6)
    assert step.carry(values, attend).equal(attend(values[:, 2:]))
    _, attend = attention(2, 1, 8)
    assert PoolAttention((2, 3), 2).carry(values, attend).equal(attend(values))
    assert PoolAttention((2, 3), 2).shape == (1, 8)


def test_windows_stand_as_in_the_model():
    step = WindowAttention((2, 4), (2, 2), (0, 1))
    seen = []
    values = torch.arange(8.0)[None]
    assert step.carry(values, lambda keys: (seen.append(keys), keys)[1]).equal(values)
    assert seen[0].equal(torch.tensor([[1.0, 2, 5, 6], [3, 0, 7, 4]]))
    assert (step.windows, step.shape) == (2, (4, 4))


@pytest.mark.parametrize(("pads_first", "expected"), [(False, [1, 2, 0, -1]), (True, [1, 2, -1, 0])])
def test_padding_goes_after_or_before_the_shift(pads_first, expected):
    step = WindowAttention((1, 3), (1, 2), (0, 1), pads_first)
    assert step.pads
    assert step._order(torch.device("cpu")).flatten().tolist() == expected
    values = torch.rand(2, 3)
    assert step.carry(values, lambda keys: keys).equal(values)


def test_attention_to_padding_is_left_out_and_the_row_scaled_up():
    step = WindowAttention((1, 3), (1, 4))
    matrix = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0], [1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]]])
    values = torch.tensor([[1.0, 0.0, 0.5]])
    after = step.carry(values, lambda keys: (matrix @ keys[:, :, None])[:, :, 0], False)
    assert torch.allclose(after, torch.tensor([[0.25 / 0.6, 0.0, 1.0]]))  # who sees padding alone keeps its own
    scores = step.fold(step.image_attention(SoftmaxCall(matrix[:, None])))
    whole = torch.tensor([[1 / 6, 1 / 3, 1 / 2], [0, 0, 0], [1, 0, 0]])
    assert torch.allclose(scores[0, 0], whole.mean(dim=0))


def test_folded_windows_weigh_as_the_global_matrix_does():
    step = WindowAttention((2, 4), (2, 2))
    scores = step.fold(torch.ones(2, 4) / 4)  # one image, two windows of uniform attention
    assert torch.allclose(scores, torch.full((1, 2, 4), 1 / 8))


def test_channel_attention_carries_no_values():
    step = ChannelAttention((2, 3), 8)
    with pytest.raises(ValueError, match="mixes channels, not tokens: of XCiT's blocks, only the class-attention"):
        step.carry(torch.rand(1, 6), lambda values: values)
    with pytest.raises(ValueError, match="mixes channels, not tokens"):
        step.fold(torch.rand(1, 8))


@pytest.mark.parametrize("old", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("new", [1, 2, 3, 6, 7])
def test_sharing_out_goes_by_area_and_keeps_the_sum(old, new):
    maps = torch.rand(2, old, new)
    found = share_out(maps, (new, old))
    fine = math.lcm(old, new)
    each = maps.repeat_interleave(fine // old, 1).repeat_interleave(fine // new, 2) / (
        (fine // old) * (fine // new)
    )
    expected = each.unflatten(1, (new, -1)).sum(2).unflatten(2, (old, -1)).sum(3)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found.sum(), maps.sum())
    with torch.autocast("cpu", torch.bfloat16):
        assert share_out(maps, (new, old)).equal(found)


def test_a_trace_counts_attention_calls_and_may_leave_all_but_class_blocks_out():
    flow = (
        SequenceAttention((2, 4)),
        Merge((2, 4), (2, 2), (2, 2)),
        SequenceAttention((1, 2)),
        Join(1),
        ClassAttention((1, 2)),
    )
    called = []

    def attend(values, number):
        called.append(number)
        return values[:, :1] if number == 2 else values

    values, joining = torch.rand(3, 8), torch.rand(3)
    assert [step.shape for step in attention_steps(flow)] == [(8, 8), (2, 2), (1, 3)]
    after = Journey(flow, values, joining).follow(attend)
    assert called == [0, 1, 2]
    merged = values.view(3, 2, 2, 2).mean(dim=(1, 3))
    assert torch.allclose(after, torch.cat((joining[:, None], merged), dim=1))
    called.clear()
    assert Journey(flow, values, joining, class_blocks_only=True).follow(attend).equal(after)
    assert called == [2]
    ones = Journey(flow, values, joining, residual=False).follow(lambda *call: torch.ones_like(attend(*call)))
    assert ones[:, 0].equal(torch.ones(3))


def test_channels_are_passed_over_where_class_blocks_alone_count():
    flow = (ChannelAttention((1, 2), 4), Join(1), ClassAttention((1, 2)))
    values = Journey(flow, torch.rand(1, 2), torch.rand(1), class_blocks_only=True).follow(
        lambda keys, _: keys[:, 1:2]
    )
    assert values.shape == (1, 3)
    with pytest.raises(ValueError, match="mixes channels"):
        Journey(flow, torch.rand(1, 2), torch.rand(1)).follow(lambda keys, _: keys)
