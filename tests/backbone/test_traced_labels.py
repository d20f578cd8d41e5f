"""One number per token, carried through the tap, equals TL-Align's whole label matrices."""

import pytest
import torch

from attnmix.attention.flow import attention_steps
from attnmix.attention.trace import Journey
from attnmix.backbone import BackboneView
from tests.backbone.families import FAMILIES, build, images
from tests.backbone.label_matrix import (
    global_matrix,
    joined,
    pyramid_labels,
    softmax_matrices,
    step,
    swin_labels,
    swin_windows,
)

TOLERANCE = 1e-6
LABELS = 5  # classes of the labels


def two_labels():
    """Source's and target's label distributions, `[B, C]` each."""
    return torch.rand(2, 2, LABELS, generator=torch.Generator().manual_seed(5)).softmax(dim=-1)


def weights(grid):
    """Share of the source in each token `[B, N]`, and in the image `[B]`."""
    share = torch.rand(2, grid[0] * grid[1], generator=torch.Generator().manual_seed(6)).round(decimals=1)
    return share, share.mean(dim=1)


def matrix_of(weight):
    """Weights `[B, ...]` as labels `[B, ..., C]`."""
    source, target = (label.view(2, *[1] * (weight.ndim - 1), LABELS) for label in two_labels())
    return weight[..., None] * source + (1 - weight[..., None]) * target


def traced(name, size=None, **options):
    """The label `[B, C]` from the scalar."""
    view, size = BackboneView(build(name, **options)), size or FAMILIES[name].size
    share, area = weights(view.token_grid_size(size))
    with torch.no_grad(), view.open_tap(None) as tap:
        view(images(name, size))
    return matrix_of(view.readout(Journey(view.flow(size), share, area).follow(tap.attend)))


def unfused(name, size=None):
    model = build(name, fused=False)
    return model, softmax_matrices(model, images(name, size))


def first(name, side, size=None):
    """Initial labels and the area's, with the first grid."""
    height, width = size or FAMILIES[name].size
    grid = height // side, width // side
    share, area = weights(grid)
    return matrix_of(share), matrix_of(area), grid


def close(found, expected):
    assert torch.allclose(found, expected, atol=TOLERANCE, rtol=0)
    assert torch.allclose(found.sum(dim=1), torch.ones(2), atol=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["vit", "vit_registers", "deit_distilled", "vit_averaged", "vit_all_averaged", "cct"]
)
@pytest.mark.parametrize("fused", [True, False])
def test_one_sequence(name, fused):
    labels, area, _ = first(name, FAMILIES[name].token_patch)
    prefix = FAMILIES[name].prefix
    labels = joined(labels, area, prefix)
    _, matrices = unfused(name)
    for matrix in matrices:
        labels = step(labels, matrix)
    expected = {
        "deit_distilled": labels[:, :2].mean(dim=1),
        "vit_averaged": labels[:, 1:].mean(dim=1),
        "vit_all_averaged": labels.mean(dim=1),
        "cct": labels.mean(dim=1),
    }.get(name, labels[:, 0])
    close(traced(name, fused=fused), expected)


@pytest.mark.parametrize("name", ["siglip", "vit_pool", "eva_pool"])
def test_attention_pool(name):
    labels, area, _ = first(name, 8)
    prefix = FAMILIES[name].prefix
    labels = joined(labels, area, prefix)
    *matrices, pool = unfused(name)[1]
    for matrix in matrices:
        labels = step(labels, matrix)
    seen = labels if name == "eva_pool" else labels[:, prefix:]
    expected = torch.stack([pool[image, 0] @ seen[image] for image in range(2)])
    close(traced(name), expected)


def test_pooling_by_refined_patches_has_no_residual():
    labels, area, _ = first("vit_prr", 8)
    labels = joined(labels, area, 1)
    model = build("vit_prr", fused=False)
    features = []
    hook = model.attn_pool.register_forward_pre_hook(lambda _, args: features.append(args[0]))
    matrices = softmax_matrices(model, images("vit_prr"))
    hook.remove()
    heads = features[0].unflatten(2, (2, 8)).transpose(1, 2)  # keys are queries
    last = (heads @ heads.transpose(2, 3) * 8**-0.5).softmax(dim=-1).mean(dim=1)
    for matrix in matrices:
        labels = step(labels, matrix)
    expected = torch.stack([last[image, 0] @ labels[image] for image in range(2)])
    close(traced("vit_prr"), expected)


def test_cait_joins_its_class_token():
    labels, area, _ = first("cait", 8)
    _, matrices = unfused("cait")
    for matrix in matrices[:2]:
        labels = step(labels, matrix)
    labels = joined(labels, area, 1)
    for matrix in matrices[2:]:
        attended = torch.stack([matrix[image, 0] @ labels[image] for image in range(2)])
        labels[:, 0] = (labels[:, 0] + attended) / 2
    close(traced("cait"), labels[:, 0])


@pytest.mark.parametrize("name", ["swin", "swin_padded", "swin_dynamic"])
@pytest.mark.parametrize("fused", [True, False])
def test_swin(name, fused):
    labels, _, grid = first(name, 2)
    model, matrices = unfused(name)
    labels = swin_labels(labels, matrices, grid, [list(stage.blocks) for stage in model.layers])
    close(traced(name, fused=fused), labels.mean(dim=1))


def test_swin_merges_odd_grids():
    size = 22, 18  # 11x9 tokens, then 6x5
    labels, _, grid = first("swin_dynamic", 2, size)
    model, matrices = unfused("swin_dynamic", size)
    labels = swin_labels(labels, matrices, grid, [list(stage.blocks) for stage in model.layers])
    close(traced("swin_dynamic", size), labels.mean(dim=1))


@pytest.mark.parametrize("name", ["hf_swin", "hf_swin_padded"])
def test_swin_in_transformers(name):
    labels, _, grid = first(name, 2)
    model, matrices = unfused(name)
    stages = [list(stage.blocks) for stage in model.swin.encoder.layers]
    close(traced(name), swin_labels(labels, matrices, grid, stages).mean(dim=1))


def test_class_attention_swin():
    labels, area, grid = first("ca_swin", 2)
    model, matrices = unfused("ca_swin")
    *windows, last = matrices
    labels = swin_labels(labels, windows, grid, [list(stage.blocks) for stage in model.layers])
    labels = joined(labels, area, 1)
    attended = torch.stack([last[image, 0] @ labels[image] for image in range(2)])
    close(traced("ca_swin"), (labels[:, 0] + attended) / 2)


@pytest.mark.parametrize("name", ["pvt", "pvt_v2"])
@pytest.mark.parametrize("fused", [True, False])
def test_pyramids(name, fused):
    labels, area, grid = first(name, 4)
    _, matrices = unfused(name)
    labels = pyramid_labels(
        labels,
        matrices,
        grid,
        area,
        ratios=[4, 2, 1],
        depths=[1, 1, 2],
        merging=(2, 2, 0) if name == "pvt" else (3, 2, 1),
        class_token=name == "pvt",
    )
    close(traced(name, fused=fused), labels[:, 0] if name == "pvt" else labels.mean(dim=1))


def test_pyramid_with_leftovers():
    size = 36, 44  # 9x11 tokens, of which cells of 4x4 leave some out
    labels, area, grid = first("pvt_v2", 4, size)
    _, matrices = unfused("pvt_v2", size)
    settings = {"ratios": [4, 2, 1], "depths": [1, 1, 2], "merging": (3, 2, 1), "class_token": False}
    labels = pyramid_labels(labels, matrices, grid, area, **settings)
    close(traced("pvt_v2", size), labels.mean(dim=1))


@pytest.mark.parametrize("name", ["hf_vit", "hf_deit", "hf_deit_teacher", "hf_dinov2"])
def test_transformers_sequences(name):
    labels, area, _ = first(name, 8)
    labels = joined(labels, area, FAMILIES[name].prefix)
    for matrix in unfused(name)[1]:
        labels = step(labels, matrix)
    expected = {
        "hf_deit_teacher": labels[:, :2].mean(dim=1),
        "hf_dinov2": (labels[:, 0] + labels[:, 1:].mean(dim=1)) / 2,
    }.get(name, labels[:, 0])
    close(traced(name), expected)


@pytest.mark.parametrize("name", ["swin", "swin_padded", "hf_swin_padded"])
def test_fold_is_the_mean_over_all_queries_of_the_global_matrix(name):
    view, size = BackboneView(build(name)), FAMILIES[name].size
    with torch.no_grad(), view.open_tap(None) as tap:
        view(images(name))
    _, matrices = unfused(name)
    for number, attention in enumerate(attention_steps(view.flow(size))):
        window, shift, pads_first = swin_windows(view.blocks[number])
        whole = global_matrix(matrices[number], attention.grid, window, shift, pads_first=pads_first)
        found = attention.fold(attention.image_attention(tap.call(number)))
        assert torch.allclose(found.flatten(1), whole.mean(dim=1), atol=TOLERANCE)
        if not attention.pads:
            assert torch.allclose(attention.fold(tap.image_attention(number)), found, atol=TOLERANCE)
