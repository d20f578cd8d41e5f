import math

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.cait import LayerScaleBlockClassAttn
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from tests.models.tiny import TINY, tiny

NAME = "ca_swin_tiny_patch4_window7_224"


def class_block(block: nn.Module, tokens: Tensor, token: Tensor) -> Tensor:
    """CaiT eq. 6-9 for one image, head by head: tokens `[N, D]`, class token `[D]` -> `[D]`."""
    width = len(token)
    size = width // block.attn.num_heads
    together = [F.layer_norm(t, (width,), block.norm1.weight, block.norm1.bias) for t in (token, *tokens)]
    query = block.attn.q.weight @ together[0] + block.attn.q.bias
    attended = torch.zeros(width)
    for head in range(block.attn.num_heads):
        part = slice(head * size, (head + 1) * size)
        logits = []
        for t in together:
            key = block.attn.k.weight @ t + block.attn.k.bias
            logits.append(query[part] @ key[part] / math.sqrt(size))
        for weight, t in zip(torch.stack(logits).softmax(dim=0), together, strict=True):
            attended[part] += weight * (block.attn.v.weight @ t + block.attn.v.bias)[part]
    token = token + block.gamma_1 * (block.attn.proj.weight @ attended + block.attn.proj.bias)
    hidden = F.layer_norm(token, (width,), block.norm2.weight, block.norm2.bias)
    hidden = F.gelu(block.mlp.fc1.weight @ hidden + block.mlp.fc1.bias)
    return token + block.gamma_2 * (block.mlp.fc2.weight @ hidden + block.mlp.fc2.bias)


@torch.no_grad()
def test_class_token_agrees_with_class_attention_in_loops_and_image_tokens_stay():
    model = tiny(NAME).eval()
    for parameter in model.class_block.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter)
    x = torch.randn(2, 3, 24, 32)
    tokens = model.layers(model.patch_embed(x)).flatten(1, 2)
    features = model.forward_features(x)
    assert features[:, 1:].equal(model.norm(tokens))
    expected = torch.stack([class_block(model.class_block, image, model.cls_token[0, 0]) for image in tokens])
    assert torch.allclose(features[:, 0], model.norm(expected), atol=1e-5)


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_no_swin_block_is_left_in_the_last_place(size):
    with torch.device("meta"):
        model = timm.create_model(f"ca_swin_{size}_patch4_window7_224")
        swin = timm.create_model(f"swin_{size}_patch4_window7_224")
    blocks = [key for key, module in model.named_modules() if isinstance(module, SwinTransformerBlock)]
    expected = [key for key, module in swin.named_modules() if isinstance(module, SwinTransformerBlock)]
    assert expected[-1] == "layers.3.blocks.1"
    assert blocks == expected[:-1]
    assert isinstance(model.class_block, LayerScaleBlockClassAttn)
    replaced = swin.layers[3].blocks[1]
    for ours, theirs in ((model.class_block.mlp, replaced.mlp), (model.class_block.norm1, replaced.norm1)):
        assert {k: v.shape for k, v in ours.state_dict().items()} == {
            k: v.shape for k, v in theirs.state_dict().items()
        }
    assert model.class_block.attn.num_heads == replaced.attn.num_heads


def test_weights_of_swin_fit_but_for_the_last_block():
    model = tiny(NAME)
    swin = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **TINY[NAME][0])
    result = model.load_state_dict(swin.state_dict(), strict=False)
    assert all(key.startswith(("class_block.", "cls_token")) for key in result.missing_keys)
    assert all(key.startswith("layers.1.blocks.1.") for key in result.unexpected_keys)


def test_class_block_takes_over_the_rates_of_the_block_it_replaces():
    model = tiny(NAME, drop_path_rate=0.4, attn_drop_rate=0.2, proj_drop_rate=0.1)
    assert model.class_block.drop_path.drop_prob == pytest.approx(0.4)
    assert model.layers[1].blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    assert model.class_block.attn.attn_drop.p == 0.2
    assert model.class_block.attn.proj_drop.p == 0.1
    assert model.class_block.mlp.drop1.p == 0.1
    assert tiny(NAME, qkv_bias=False).class_block.attn.q.bias is None


@torch.no_grad()
def test_a_class_block_that_starts_at_nothing_leaves_the_class_token():
    assert tiny(NAME).class_block.gamma_1.eq(1).all()
    model = tiny(NAME, init_values=0.0).eval()
    token = model.forward_features(torch.randn(2, 3, 24, 32))[:, 0]
    assert torch.allclose(token, model.norm(model.cls_token)[0].expand(2, -1), atol=1e-6)


def test_a_last_stage_of_one_block_has_class_attention_alone():
    model = tiny(NAME, depths=(1, 1)).train()
    model.set_grad_checkpointing()
    assert len(model.layers[-1].blocks) == 0
    model(torch.randn(1, 3, 24, 32)).sum().backward()


def test_other_image_sizes():
    options = {"embed_dim": 16, "depths": (1, 2), "num_heads": (1, 2), "window_size": 7, "num_classes": 5}
    model = timm.create_model(NAME, img_size=56, **options)
    assert model.forward_features(torch.randn(1, 3, 56, 56)).shape == (1, 1 + 49, 32)
    model.set_input_size((56, 112))
    assert model.forward_features(torch.randn(1, 3, 56, 112)).shape == (1, 1 + 98, 32)
    any_size = timm.create_model(NAME, img_size=56, dynamic_img_size=True, **options)
    assert any_size.forward_features(torch.randn(1, 3, 64, 40)).shape == (1, 1 + 40, 32)


def test_image_sides_that_would_be_padded_are_refused():
    with pytest.raises(ValueError, match="image height 28 is not a multiple of 8; 32 would be"):
        tiny(NAME, img_size=(28, 32))
    with pytest.raises(ValueError, match="image width 220 is not a multiple of 32; 224 would be"):
        timm.create_model(NAME, img_size=(224, 220))
    model = tiny(NAME)
    with pytest.raises(ValueError, match="image width 36 is not a multiple of 8; 32 would be"):
        model(torch.randn(1, 3, 24, 36))
    with pytest.raises(ValueError, match="image height 20 is not a multiple of 8; 16 would be"):
        model.set_input_size((20, 32))


def test_what_would_lack_the_class_block_is_refused():
    with pytest.raises(ValueError, match="has no features_only"):
        tiny(NAME, features_only=True)
    with pytest.raises(ValueError, match="no forward_intermediates"):
        tiny(NAME).forward_intermediates(torch.randn(1, 3, 24, 32))
