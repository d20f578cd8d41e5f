import pytest
import torch

from attnmix.attention import call as call_module
from attnmix.attention import quantities
from attnmix.attention.call import FusedCall, SoftmaxCall


@pytest.fixture(params=["fused", "softmax"])
def call(request):
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(3, 2, tokens, 4, generator=generator) for tokens in (6, 7))
    if request.param == "fused":
        return FusedCall(query, key, scale=1.0)
    return SoftmaxCall((query @ key.transpose(-2, -1)).softmax(-1))


@pytest.fixture
def matrix(call):
    """Head-mean attention [B, M_query, M_key]."""
    return quantities.probabilities(call).mean(1)


def close(result, expected):
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)


def test_probabilities_rows_sum_to_one(call):
    rows = quantities.probabilities(call)
    assert rows.shape == (3, 2, 6, 7)
    close(rows.sum(-1), torch.ones(3, 2, 6))


def test_class_attention(call, matrix):
    kept = matrix[:, 0, 2:]
    close(quantities.class_attention(call, 2), kept / kept.sum(1, keepdim=True))


def test_image_attention(call, matrix):
    close(quantities.image_attention(call, 1, 2), matrix[:, 1:, 2:].mean(1))
    close(quantities.image_attention(call, 0, 0), matrix.mean(1))


def test_presence_sums_rows_scaled_to_image_keys(call, matrix):
    rows = matrix[:, 1:, 2:]
    found = quantities.presence(call, 1, 2)
    close(found, (rows / rows.sum(2, keepdim=True)).sum(1))
    close(found.sum(1), torch.full((3,), 5.0))


def test_presence_leaves_out_a_query_that_looks_at_prefix_tokens_alone():
    rows = torch.tensor([[[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.125, 0.375]]]])
    close(quantities.presence(SoftmaxCall(rows), 1, 1), torch.tensor([[0.25, 0.75]]))


def test_uniform_attention_gives_uniform_scores():
    call = FusedCall(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    close(quantities.presence(call, 1, 1), torch.ones(1, 4))
    close(quantities.class_attention(call, 1), torch.full((1, 4), 1 / 4))
    close(quantities.image_attention(call, 1, 1), torch.full((1, 4), 1 / 5))


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_products_do_not_depend_on_the_chunks(call, matrix, rows, monkeypatch):
    monkeypatch.setattr(call_module, "rows_at_once", lambda *_: rows)
    weights, values = torch.rand(3, 6), torch.rand(3, 7)
    close(quantities.left_product(weights, call), (weights[:, None] @ matrix)[:, 0])
    close(quantities.left_product(weights[0], call), (weights[0] @ matrix))
    close(quantities.right_product(call, values), (matrix @ values[..., None])[..., 0])
    close(quantities.image_attention(call, 1, 2), matrix[:, 1:, 2:].mean(1))


def test_class_attention_computes_one_row(call, monkeypatch):
    asked = []

    def spy(call, start, stop):
        asked.append((start, stop))
        return call_module.softmax_rows(call, start, stop)

    monkeypatch.setattr(quantities, "softmax_rows", spy)
    quantities.class_attention(call, 1)
    assert asked == [(0, 1)]


def test_renormalise():
    scores = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert quantities.renormalise(scores).tolist() == [[0.25, 0.75], [0.0, 0.0]]
