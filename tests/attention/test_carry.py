import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from attnmix.attention import carry
from attnmix.attention.carry import carrying_attention

BATCH, HEADS, QUERIES, KEYS, WIDTH = 3, 2, 11, 13, 8


def qkv(dtype=torch.float32):
    """Query, key and value as views with gradient, laid out as a model's."""
    generator = torch.Generator().manual_seed(0)
    sides = (QUERIES, KEYS, KEYS)
    drawn = [torch.randn(BATCH, side, HEADS, WIDTH, generator=generator, dtype=dtype) for side in sides]
    leaves = [tensor.requires_grad_() for tensor in drawn]
    return leaves, [leaf.transpose(1, 2) for leaf in leaves]


def carried():
    return torch.rand(BATCH, KEYS, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize("contiguous", [True, False])
def test_the_attention_is_the_plain_one_and_the_product_its_head_mean(scale, contiguous):
    leaves, (query, key, value) = qkv()
    if contiguous:
        query, key, value = (tensor.contiguous() for tensor in (query, key, value))
    wanted = F.scaled_dot_product_attention(query, key, value, scale=scale)
    output, attended = carrying_attention(carried(), query, key, value, scale=scale)
    torch.testing.assert_close(output, wanted, atol=1e-6, rtol=0)
    assert output.stride() == wanted.stride()
    weight = torch.randn_like(wanted)
    for ours, theirs in zip(
        torch.autograd.grad((output * weight).sum(), leaves),
        torch.autograd.grad((wanted * weight).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)

    logits = query @ key.transpose(-2, -1) * (WIDTH**-0.5 if scale is None else scale)
    matrix = logits.softmax(dim=-1).mean(dim=1)
    torch.testing.assert_close(attended, (matrix @ carried()[..., None])[..., 0], atol=1e-6, rtol=0)
    assert not attended.requires_grad


def test_no_more_is_kept_for_the_backward_pass_than_by_the_plain_call():
    def kept(node):
        storages = (tensor.untyped_storage() for tensor in node.saved_tensors)
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    _, (query, key, value) = qkv()
    output, _ = carrying_attention(carried(), query, key, value)
    inputs = sum(tensor.untyped_storage().nbytes() for tensor in (query, key, value))
    logsumexp = BATCH * HEADS * QUERIES * 4
    assert sum(kept(output.grad_fn).values()) == inputs + output.numel() * 4 + logsumexp
    assert output.transpose(1, 2).is_contiguous()  # so that flattening the heads makes no copy either


class Watcher(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": torch.ones(QUERIES, KEYS, dtype=torch.bool)},
        {"is_causal": True},
        {"dropout_p": 0.1},
        {"enable_gqa": True},
    ],
)
def test_calls_with_options_that_change_the_rows_carry_nothing(options):
    _, tensors = qkv()
    assert carrying_attention(carried(), *tensors, **options) is None


@pytest.mark.parametrize(
    "around",
    [
        lambda: Watcher(),
        lambda: torch.autograd.graph.save_on_cpu(),
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: sdpa_kernel(SDPBackend.MATH),
    ],
    ids=["watched", "saved elsewhere", "autocast", "not fused"],
)
def test_where_the_plain_call_would_not_be_the_same_nothing_is_carried(around):
    _, tensors = qkv()
    with around():
        assert carrying_attention(carried(), *tensors) is None
    assert carrying_attention(carried(), *tensors) is not None


def test_half_precision_carries_nothing():
    _, tensors = qkv(torch.bfloat16)
    assert carrying_attention(carried(), *tensors) is None


@pytest.mark.parametrize("name", ["_forward", "_backward", "_choice", "_saving_hooks"])
def test_a_torch_without_the_private_parts_carries_nothing(monkeypatch, name):
    monkeypatch.setattr(carry, name, None)
    assert carrying_attention(carried(), *qkv()[1]) is None


def test_a_default_device_is_nobody_who_watches():
    _, tensors = qkv()
    with torch.device("cpu"):
        assert carrying_attention(carried(), *tensors) is not None
