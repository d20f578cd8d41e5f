import math

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.tiny import tiny


def reduced_attention(attention: nn.Module, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """One image `[N, D]`: reduced keys cell by cell, heads and queries in loops."""
    side, (rows, columns) = attention.sr_ratio, grid
    cells = []
    for top in range(0, rows, side):
        for left in range(0, columns, side):
            cell = attention.sr.bias.clone()
            for i in range(side):
                for j in range(side):
                    cell += attention.sr.weight[:, :, i, j] @ tokens[(top + i) * columns + left + j]
            cell = (cell - cell.mean()) / (cell.var(unbiased=False) + attention.norm.eps).sqrt()
            cells.append(cell * attention.norm.weight + attention.norm.bias)
    keys_values = [attention.kv.weight @ cell + attention.kv.bias for cell in cells]
    width, size = tokens.shape[1], tokens.shape[1] // attention.num_heads
    out = []
    for token in tokens:
        query = attention.q.weight @ token + attention.q.bias
        mixed = torch.zeros(width)
        for head in range(attention.num_heads):
            part = slice(head * size, (head + 1) * size)
            logits = torch.stack([query[part] @ kv[:width][part] / math.sqrt(size) for kv in keys_values])
            for weight, kv in zip(logits.softmax(dim=0), keys_values, strict=True):
                mixed[part] += weight * kv[width:][part]
        out.append(attention.proj.weight @ mixed + attention.proj.bias)
    return torch.stack(out)


@pytest.mark.parametrize("stage", [1, 2])
@torch.no_grad()
def test_spatial_reduction_agrees_with_attention_over_cells_in_loops(stage):
    block = tiny("pvt_tiny").stages[stage].blocks[0].eval()
    nn.init.normal_(block.attn.norm.weight)
    nn.init.normal_(block.attn.sr.bias)
    nn.init.normal_(block.attn.kv.bias)
    grid = (4, 8)
    tokens = torch.randn(2, 32, block.attn.q.in_features)
    expected = torch.stack([reduced_attention(block.attn, image, grid) for image in tokens])
    assert torch.allclose(block.attn(tokens, grid), expected, atol=1e-5)


@torch.no_grad()
def test_block_is_pre_norm_attention_then_pre_norm_mlp():
    block = tiny("pvt_tiny").stages[1].blocks[1].eval()
    x = torch.randn(2, 32, 16)
    middle = x + block.attn(F.layer_norm(x, (16,), eps=1e-6), (4, 8))
    hidden = F.gelu(block.mlp.fc1(F.layer_norm(middle, (16,), eps=1e-6)))
    assert torch.allclose(block(x, (4, 8)), middle + block.mlp.fc2(hidden), atol=1e-5)


def test_layout_of_the_stages():
    model = tiny("pvt_tiny")
    assert [stage.blocks[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]
    assert [stage.patch_embed.patch_size for stage in model.stages] == [(4, 4), (2, 2), (2, 2), (2, 2)]
    assert [tuple(stage.patch_embed.grid_size) for stage in model.stages] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    assert [stage.pos_embed.shape[1] for stage in model.stages] == [384, 96, 24, 7]
    assert [stage.blocks[0].mlp.fc1.out_features for stage in model.stages] == [64, 128, 96, 128]
    assert [info["reduction"] for info in model.feature_info] == [4, 8, 16, 32]
    assert model.patch_embed is model.stages[0].patch_embed


@torch.no_grad()
def test_class_token_joins_in_the_last_stage_before_its_positions():
    model = tiny("pvt_tiny").eval()
    seen = []
    for stage in model.stages:
        stage.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    model(torch.randn(2, 3, 64, 96))
    assert [tokens.shape[1] for tokens, _ in seen] == [384, 96, 24, 7]
    assert [tuple(grid) for _, grid in seen] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    first = seen[-1][0][:, 0]
    assert torch.allclose(first, (model.cls_token + model.stages[3].pos_embed[:, :1])[0].expand(2, -1), atol=1e-6)


@torch.no_grad()
def test_tokens_of_a_stage_are_passed_on_in_their_places():
    """Rows and columns are not exchanged: what changes in one corner stays there without attention."""
    model = tiny("pvt_tiny", depths=(0, 0, 0, 0)).eval()
    plain = torch.randn(1, 3, 64, 96)
    changed = plain.clone()
    changed[:, :, :32, 64:] += 1
    difference = (model.forward_features(plain) - model.forward_features(changed)).abs().sum(dim=2)[0]
    assert difference.nonzero().flatten().tolist() == [1 + 2]  # after the class token: row 0, column 2


@torch.no_grad()
def test_positions_are_interpolated_for_another_image_size():
    model = tiny("pvt_tiny").eval()
    for stage in model.stages:
        stage.pos_embed.copy_(stage.pos_embed[:, -1:].clone())  # the same at every place
    assert model.forward_features(torch.randn(2, 3, 96, 128)).shape == (2, 1 + 3 * 4, 32)
    other = tiny("pvt_tiny", img_size=(96, 128)).eval()
    weights = {key: value for key, value in model.state_dict().items() if "pos_embed" not in key}
    other.load_state_dict(weights, strict=False)
    for stage, reference in zip(other.stages, model.stages, strict=True):
        stage.pos_embed.copy_(reference.pos_embed[:, -1:].expand_as(stage.pos_embed))
    x = torch.randn(2, 3, 96, 128)
    assert torch.allclose(model(x), other(x), atol=1e-5)


def test_interpolation_keeps_rows_and_columns_apart():
    stage = tiny("pvt_tiny").stages[3]
    rows = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])  # 2 x 3: grows downwards only
    stage.pos_embed.data[:, 1:] = rows[None, :, None]
    grown = stage._positions((4, 3))[0, 1:, 0].unflatten(0, (4, 3))
    assert grown[:, 0].tolist() == pytest.approx([0, 0.25, 0.75, 1])
    assert torch.allclose(grown[:, :1].expand(-1, 3), grown)


def test_options_of_stages_change_them():
    def count(**options: object) -> int:
        return sum(parameter.numel() for parameter in tiny("pvt_tiny", **options).parameters())

    base = count()
    assert count(mlp_ratios=(4, 8, 4, 4)) == base - (2 * 8 * 32 + 32)
    assert count(sr_ratios=(1, 4, 2, 1)) == base - (8 * 8 * 64 + 3 * 8)
    assert count(embed_dims=(16, 16, 24, 32)) > base
    assert count(depths=(1, 1, 1, 1)) < base
    assert timm.create_model("pvt_small", embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1)).stages[2].blocks[5]


def test_image_sides_that_lose_tokens_are_refused():
    with pytest.raises(ValueError, match="image height 48 is not a multiple of 32; 64 would be"):
        tiny("pvt_tiny", img_size=48)
    with pytest.raises(ValueError, match="image width 100 is not a multiple of 32; 96 would be"):
        tiny("pvt_tiny")(torch.randn(1, 3, 64, 100))
    # the reduction, not only the patches, sets the multiple
    assert tiny("pvt_tiny", img_size=32, sr_ratios=(4, 4, 2, 1)).size_multiple == 32
    assert tiny("pvt_tiny", img_size=128, sr_ratios=(16, 4, 2, 1)).size_multiple == 64


def test_stages_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"one number per stage each, got \[4, 3, 4, 4, 4\] numbers"):
        tiny("pvt_tiny", depths=(1, 1, 1))
    with pytest.raises(ValueError, match=r"sr_ratios \(8, 4, 2, 2\) must end with 1"):
        tiny("pvt_tiny", sr_ratios=(8, 4, 2, 2))
    with pytest.raises(ValueError, match="pvt_tiny has no features_only"):
        tiny("pvt_tiny", features_only=True)


def test_fewer_stages_work():
    model = tiny(
        "pvt_tiny",
        img_size=32,
        embed_dims=(8, 16),
        depths=(1, 1),
        num_heads=(1, 2),
        mlp_ratios=(2, 2),
        sr_ratios=(2, 1),
    )
    assert model.forward_features(torch.randn(1, 3, 32, 32)).shape == (1, 1 + 16, 16)
