import pytest
import torch
import torch.nn.functional as F

from attnmix.attention.recorder import AttentionRecorder

QUERY = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))


def attend(number: int) -> None:
    F.scaled_dot_product_attention(QUERY * number, QUERY, QUERY)


@pytest.mark.parametrize(
    ("blocks", "held", "left"),
    [
        ((-1,), [5], [5]),
        ((-3,), [3, 4, 5], [3]),
        ((-1, -2), [4, 5], [4, 5]),
        ((1,), [1], [1]),
        ((1, -1), [1, 5], [1, 5]),
        ((0, 9), [0], [0]),
        (None, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_only_what_can_be_wanted_is_held(blocks, held, left):
    with AttentionRecorder(blocks) as recorder:
        for number in range(6):
            attend(number)
            assert len(recorder.calls) <= len(held)
    assert sorted(recorder.calls) == held
    recorder.drop_unwanted()
    assert sorted(recorder.calls) == left
    assert all(torch.equal(call.query, QUERY * number) for number, call in recorder.calls.items())
    assert recorder.shapes == [(5, 5)] * 6


@pytest.mark.parametrize(
    "softmax",
    [
        lambda x: x.softmax(-1),
        lambda x: x.softmax(dim=3),
        lambda x: torch.softmax(x, -1),
        lambda x: torch.special.softmax(x, -1),
        lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
        lambda x: torch.nn.Softmax(dim=-1)(x),
    ],
)
def test_every_spelling_of_softmax_is_seen_once(softmax):
    logits = torch.randn(2, 3, 5, 5)
    with AttentionRecorder(None) as recorder:
        softmax(logits)
    torch.testing.assert_close(recorder.calls[0].softmax, logits.softmax(-1))
    assert recorder.shapes == [(5, 5)]


def test_other_shapes_are_not_counted():
    with AttentionRecorder(None) as recorder:
        torch.randn(2, 3, 5, 5).softmax(1)
        torch.randn(2, 10).softmax(-1)
        F.softmax(torch.randn(2, 3, 5), dim=-1)
        with pytest.warns(UserWarning, match="Implicit dimension choice"):
            F.softmax(torch.randn(2, 3, 5, 5))
        F.scaled_dot_product_attention(QUERY[None], QUERY[None], QUERY[None])
    assert recorder.shapes == []


def test_arguments_by_position_and_by_name_are_the_same():
    mask = torch.ones(5, 5, dtype=torch.bool)
    with AttentionRecorder(None) as recorder:
        F.scaled_dot_product_attention(QUERY, QUERY, QUERY, mask, 0.0, False, scale=0.3)
        F.scaled_dot_product_attention(value=QUERY, key=QUERY, query=QUERY, attn_mask=mask, scale=0.3)
        F.scaled_dot_product_attention(QUERY, QUERY, QUERY, is_causal=True)
    for number in (0, 1):
        call = recorder.calls[number]
        assert torch.equal(call.mask, mask)
        assert (call.scale, call.is_causal) == (0.3, False)
    assert recorder.calls[2].is_causal


def test_what_is_kept_has_no_gradient_and_no_copy():
    query = QUERY.clone().requires_grad_()
    bias = torch.zeros(5, 5, requires_grad=True)
    with AttentionRecorder(None) as recorder:
        F.scaled_dot_product_attention(query, query, query, bias)
        (query @ query.transpose(-2, -1)).softmax(-1)
    call = recorder.calls[0]
    assert not any(tensor.requires_grad for tensor in (call.query, call.key, call.mask, recorder.calls[1].softmax))
    assert call.query.data_ptr() == query.data_ptr()
