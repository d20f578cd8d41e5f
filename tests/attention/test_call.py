import pytest
import torch
import torch.nn.functional as F

from attnmix.attention import call as call_module
from attnmix.attention.call import FusedCall, SoftmaxCall, aside, chunks, in_float32, rows_at_once, softmax_rows

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 5, 7, 3


@pytest.fixture
def query_key():
    generator = torch.Generator().manual_seed(0)
    return (
        2 * torch.randn(BATCH, HEADS, QUERIES, DIM, generator=generator),
        2 * torch.randn(BATCH, HEADS, KEYS, DIM, generator=generator),
    )


def by_torch(query, key, **options):
    """P itself: attention whose values are the unit vectors."""
    value = torch.eye(KEYS).expand(BATCH, key.shape[1], KEYS, KEYS)
    return F.scaled_dot_product_attention(query, key, value, **options)


def all_rows(call):
    found = torch.full(call.shape, float("nan"))
    for samples, queries, rows in chunks(call):
        found[samples, :, queries] = rows
    return found


bool_mask = torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.4
bool_mask[..., 0] = True


@pytest.mark.parametrize("rows", [1, 2, 5, 9, 10])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.1},
        {"is_causal": True},
        {"attn_mask": bool_mask},
        {"attn_mask": bool_mask[:, :, :1]},
        {"attn_mask": bool_mask[1:]},
        {"attn_mask": torch.randn(QUERIES, KEYS, generator=torch.Generator().manual_seed(4))},
        {"attn_mask": torch.randn(HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(4))},
    ],
    ids=["plain", "scale", "causal", "bool", "bool_one_row", "bool_for_all", "bias", "bias_per_head"],
)
def test_rows_equal_torch_attention(query_key, options, rows, monkeypatch):
    monkeypatch.setattr(call_module, "rows_at_once", lambda *_: rows)
    names = {"attn_mask": "mask"}
    call = FusedCall(*query_key, **{names.get(name, name): value for name, value in options.items()})
    result = all_rows(call)
    torch.testing.assert_close(result, by_torch(*query_key, **options), atol=1e-6, rtol=0)
    if options:
        assert not torch.allclose(result, all_rows(FusedCall(*query_key)))


def test_grouped_heads(query_key):
    query, key = query_key
    key = key[:, :2]
    expected = by_torch(query, key, enable_gqa=True)
    torch.testing.assert_close(all_rows(FusedCall(query, key)), expected, atol=1e-6, rtol=0)


def test_a_query_that_may_attend_to_nothing_has_zeros_like_torch(query_key):
    mask = bool_mask.clone()
    mask[0, 0, 2] = False
    result = all_rows(FusedCall(*query_key, mask=mask))
    assert (result[0, :, 2] == 0).all()
    torch.testing.assert_close(result, by_torch(*query_key, attn_mask=mask), atol=1e-6, rtol=0)


def test_half_precision_is_worked_out_in_float32(query_key):
    half = [tensor.bfloat16() for tensor in query_key]
    result = all_rows(FusedCall(*half))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, by_torch(*(tensor.float() for tensor in half)), atol=1e-6, rtol=0)
    assert softmax_rows(SoftmaxCall(result.bfloat16()), 0, 1).dtype == torch.float32


def test_float32_is_not_copied(query_key):
    call = in_float32(FusedCall(*query_key))
    assert call.query.data_ptr() == query_key[0].data_ptr()
    assert call.key.data_ptr() == query_key[1].data_ptr()


@pytest.mark.parametrize("kind", ["fused", "softmax"])
def test_chunks_are_small_cover_every_row_and_shapes_are_told(query_key, kind, monkeypatch):
    call = FusedCall(*query_key)
    if kind == "softmax":
        call = SoftmaxCall(all_rows(call))
    assert call.shape == (BATCH, HEADS, QUERIES, KEYS)
    assert call.device == torch.device("cpu")
    monkeypatch.setattr(call_module, "rows_at_once", lambda *_: 2)
    found = list(chunks(call))
    assert [(rows.start, rows.stop) for _, rows, _ in found] == 2 * [(0, 2), (2, 4), (4, 5)]
    assert [samples.start for samples, _, _ in found] == [0, 0, 0, 1, 1, 1]
    assert all(rows.shape[1:] == (HEADS, min(2, rows.shape[2]), KEYS) for _, _, rows in found)
    monkeypatch.undo()
    assert len(list(chunks(call))) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_long_rows_come_by_the_32_and_short_ones_by_a_budget(device):
    device = torch.device(device)
    assert rows_at_once(3, 10**8, device) == 32
    assert rows_at_once(3, 197, device) == (2**17 if device.type == "cpu" else 2**24) // (3 * 197)


def test_aside_has_no_gradient_and_no_autocast():
    weight = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), aside(torch.device("cpu")):
        product = weight @ weight
    assert product.dtype == torch.float32
    assert not product.requires_grad
