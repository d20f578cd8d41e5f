import pytest
import torch

from attnmix.benchmark.flops import count_flops
from tests.conftest import NUM_CLASSES

BATCH, TOKENS, HEADS, WIDTH, DEPTH = 2, 25, 2, 24, 3  # the tiny ViT's 4x6 tokens and its class token


@pytest.fixture
def count(make_vit):
    images = torch.randn(BATCH, 3, 16, 24)

    def counted(*, fused, backward=False):
        model = make_vit()
        for block in model.blocks:
            block.attn.fused_attn = fused
        return count_flops(lambda: model(images).sum().backward() if backward else model(images))

    return counted


def test_a_forward_costs_what_its_matrices_say(count):
    patches = 2 * BATCH * 24 * (3 * 4 * 4) * WIDTH
    linear = 2 * BATCH * TOKENS * WIDTH * (3 + 1 + 4 + 4) * WIDTH
    attention = 2 * 2 * BATCH * TOKENS * TOKENS * WIDTH
    head = 2 * BATCH * WIDTH * NUM_CLASSES
    assert count(fused=True) == patches + DEPTH * (linear + attention) + head


def test_fused_attention_counts_as_the_plain_one_does(count):
    assert count(fused=True) == count(fused=False)


def test_the_fused_backward_computes_the_scores_once_more(count):
    again = DEPTH * 2 * BATCH * TOKENS * TOKENS * WIDTH
    assert count(fused=True, backward=True) - count(fused=False, backward=True) == again


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradient_it_is_the_same(make_vit, count, mode):
    model, images = make_vit(), torch.randn(BATCH, 3, 16, 24)
    with mode():
        assert count_flops(lambda: model(images)) == count(fused=True)
