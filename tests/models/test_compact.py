import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, VisionTransformer

from attnmix.models.compact import CompactBlock
from tests.models.tiny import tiny


@pytest.mark.parametrize("name", ["cct_7_3x1_32", "vit_lite_7_4_32"])
@torch.no_grad()
def test_block_norms_the_residual_before_the_mlp(name):
    model = tiny(name).eval()
    block = model.blocks[1]
    assert isinstance(block, CompactBlock)
    x = torch.randn(2, 6, 16)
    middle = F.layer_norm(x + block.attn(F.layer_norm(x, (16,))), (16,))
    expected = middle + block.mlp.fc2(F.gelu(block.mlp.fc1(middle)))
    assert torch.allclose(block(x), expected, atol=1e-5)
    plain = tiny(name, block_fn=Block).eval()
    plain.load_state_dict(model.state_dict(), strict=True)
    assert not plain.blocks[1](x).allclose(expected)


def test_vit_lite_is_timms_own_class():
    assert type(timm.create_model("vit_lite_7_4_32")) is VisionTransformer


@torch.no_grad()
def test_tokens_are_the_maxima_of_overlapping_windows():
    model = tiny("cct_7_3x1_32").eval()
    x = torch.randn(1, 3, 8, 12)
    maps = F.conv2d(x, model.patch_embed.proj[0].weight, padding=1).relu()[0]  # [D, 8, 12]
    tokens = model.patch_embed(x)[0]
    assert tokens.shape == (4 * 6, 16)
    for row in range(4):
        for column in range(6):
            window = maps[:, max(0, 2 * row - 1) : 2 * row + 2, max(0, 2 * column - 1) : 2 * column + 2]
            assert torch.allclose(tokens[row * 6 + column], window.amax(dim=(1, 2)), atol=1e-5)
    assert model.patch_embed.patch_size == (2, 2)
    assert model.patch_embed.dynamic_feat_size((8, 12)) == (4, 6)


@torch.no_grad()
def test_sequence_pooling_is_a_mean_weighted_by_softmax():
    model = tiny("cct_7_3x1_32").eval()
    tokens = torch.randn(2, 5, 16)
    for sequence, pooled in zip(tokens, model.pool(tokens), strict=True):
        scores = [float(token @ model.seq_pool.weight[0] + model.seq_pool.bias) for token in sequence]
        weights = torch.tensor(scores).exp()
        expected = sum(w * token for w, token in zip(weights / weights.sum(), sequence, strict=True))
        assert torch.allclose(pooled, expected, atol=1e-5)
    assert model.pool(tokens, "avg").allclose(tokens.mean(dim=1))


def test_timms_own_options_work():
    moving = tiny("cct_7_3x1_32", dynamic_img_size=True).eval()
    fixed = tiny("cct_7_3x1_32").eval()
    x = torch.randn(2, 3, 8, 12)
    assert torch.allclose(moving(x), fixed(x), atol=1e-6)
    assert moving.forward_features(torch.randn(1, 3, 12, 16)).shape == (1, 6 * 8, 16)
    fixed.set_input_size((12, 16))
    assert fixed.forward_features(torch.randn(1, 3, 12, 16)).shape == (1, 6 * 8, 16)
    maps = tiny("cct_7_3x1_32", features_only=True, out_indices=(0, 1))(x)
    assert [tuple(m.shape) for m in maps] == [(2, 16, 4, 6)] * 2
    padding = tiny("cct_7_3x1_32", dynamic_img_size=True, dynamic_img_pad=True)
    assert padding.forward_features(torch.randn(1, 3, 7, 11)).shape == (1, 4 * 6, 16)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="image width 13 is not a multiple of 2; 12 would be"):
        tiny("cct_7_3x1_32", img_size=(8, 13))
    with pytest.raises(ValueError, match="image height 7 is not a multiple of 2; 8 would be"):
        tiny("cct_7_3x1_32", dynamic_img_size=True)(torch.randn(1, 3, 7, 12))
    with pytest.raises(ValueError, match="image height 30 is not a multiple of 4; 32 would be"):
        tiny("vit_lite_7_4_32", img_size=30)
    with pytest.raises(ValueError, match="patch_size 4: the tokenizer's stride is 2"):
        tiny("cct_7_3x1_32", patch_size=4)
    with pytest.raises(ValueError, match="patch_size 4: the tokenizer's stride is 2"):
        tiny("cct_7_3x1_32").set_input_size(patch_size=4)
