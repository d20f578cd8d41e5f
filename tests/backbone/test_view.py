import copy

import pytest
import timm
import torch
import torchvision
from torch import nn

from attnmix.attention.flow import attention_steps
from attnmix.backbone import BackboneView
from tests.backbone.families import FAMILIES as KINDS
from tests.backbone.families import build, images
from tests.backbone.label_matrix import global_matrix, softmax_matrices, swin_windows

FAMILIES = [
    ("class token", {}, 1, True),
    ("no class token", {"class_token": False, "global_pool": "avg"}, 0, False),
    ("class and registers", {"reg_tokens": 3}, 4, True),
    ("registers only", {"class_token": False, "reg_tokens": 2, "global_pool": "avg"}, 2, False),
    ("class token, averaged", {"global_pool": "avg"}, 1, False),
    ("attention pool", {"class_token": False, "global_pool": "map"}, 0, True),
]


@pytest.mark.parametrize(
    ("options", "prefix", "class_row"), [f[1:] for f in FAMILIES], ids=[f[0] for f in FAMILIES]
)
def test_forward_tokens_gives_the_models_own_logits_and_the_grids_tokens(make_vit, options, prefix, class_row):
    model = make_vit(**options).eval()
    view = BackboneView(model)
    images = torch.randn(2, 3, 16, 24)
    logits, tokens = view.forward_tokens(images)
    assert logits.equal(model(images))
    assert tokens.equal(model.forward_features(images)[:, prefix:])
    assert tokens.shape == (2, 24, view.embed_dim)
    assert view.num_prefix_tokens == prefix
    assert view.has_class_row is class_row


def test_classify_is_head_for_a_class_token_and_norm_then_head_for_an_average(make_vit):
    pooled = torch.randn(3, 24)
    model = make_vit().eval()
    assert torch.allclose(BackboneView(model).classify(pooled), model.head(pooled), atol=1e-6)
    model = make_vit(class_token=False, global_pool="avg", fc_norm=True).eval()
    assert torch.allclose(BackboneView(model).classify(pooled), model.head(model.fc_norm(pooled)), atol=1e-5)


def test_a_distilled_model_is_classified_by_the_mean_of_its_two_heads():
    model = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=1, num_classes=4)
    nn.init.normal_(model.head.weight)
    nn.init.normal_(model.head_dist.weight)
    view = BackboneView(model)
    pooled, images = torch.randn(2, 192), torch.randn(2, 3, 32, 32)
    both = (model.head(pooled) + model.head_dist(pooled)) / 2
    assert torch.allclose(view.classify(pooled), both, atol=1e-5)
    model.set_distilled_training(True)
    assert torch.allclose(view.classify(pooled), both, atol=1e-5)
    assert view(images).shape == (2, 4)


def test_grid_follows_the_image():
    view = BackboneView(timm.create_model("vit_tiny_patch16_224", img_size=(32, 64), depth=1))
    assert view.grid_size((32, 64)) == (2, 4)
    with pytest.raises(ValueError, match="image height 50 is not a multiple of the patch, 16 pixels; 48 would be"):
        view.grid_size((50, 64))
    with pytest.raises(ValueError, match="image width 7 is not"):
        view.grid_size((32, 7))


@pytest.mark.parametrize("name", ["resnet18", "test_convnext", "mixer_s32_224", "swinv2_cr_tiny_224"])
def test_other_families_are_refused_by_name(name):
    model = timm.create_model(name)
    with pytest.raises(ValueError, match=f"{type(model).__name__} .*supported are timm's VisionTransformer"):
        BackboneView(model)


def test_a_family_of_the_same_name_in_another_package_is_refused():
    model = torchvision.models.VisionTransformer(
        image_size=16, patch_size=8, num_layers=1, num_heads=1, hidden_dim=8, mlp_dim=8
    )
    with pytest.raises(
        ValueError, match="VisionTransformer does not lay out its tokens in a known way; supported"
    ):
        BackboneView(model)


def test_patches_dropped_in_training_are_refused(make_vit):
    BackboneView(make_vit()).require_all_tokens()
    with pytest.raises(ValueError, match="drops 25% of its patches.*patch_drop_rate=0"):
        BackboneView(make_vit(patch_drop_rate=0.25)).require_all_tokens()


@pytest.mark.parametrize("wrapper", [nn.DataParallel])
def test_a_model_wrapped_for_distributed_training_is_refused(make_vit, wrapper):
    with pytest.raises(ValueError, match="wrapped in DataParallel: give the model itself, and wrap the task"):
        BackboneView(wrapper(make_vit()))


def test_a_copy_looks_at_the_copied_model_also_when_compiled(make_vit):
    view = BackboneView(torch.compile(make_vit(), backend="eager"))
    twin = copy.deepcopy(view)
    assert twin.model is not view.model
    assert twin.compiled is not None
    with torch.no_grad():
        twin.model.head.weight.zero_()
        twin.model.head.bias.zero_()
    images = torch.randn(1, 3, 16, 24)
    assert twin(images).abs().sum() == twin.forward_tokens(images)[0].abs().sum() == 0
    assert view(images).abs().sum() > 0
    assert view.forward_tokens(images)[0].abs().sum() > 0


def test_evaluating_gives_each_module_its_flag_back_also_after_an_exception(make_vit):
    model = make_vit().train()
    model.blocks[1].eval()  # frozen by the user
    flags = [module.training for module in model.modules()]
    with BackboneView(model).evaluating():
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == flags

    def fail():
        with BackboneView(model).evaluating():
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert [module.training for module in model.modules()] == flags


def image_matrices(name):
    """Of every block in which image tokens attend, its number and `[B, N, N]`: by hooks from an unfused model."""
    model, batch = build(name, fused=False), images(name)
    matrices = softmax_matrices(model, batch)
    if "swin" not in name:
        calls = [(number, matrix) for number, matrix in enumerate(matrices) if matrix.shape[1] > 1]
        prefix = calls[0][1].shape[1] - KINDS[name].size[0] * KINDS[name].size[1] // KINDS[name].patch ** 2
        return [(number, matrix[:, prefix:, prefix:]) for number, matrix in calls]
    found, grid = [], tuple(side // KINDS[name].token_patch for side in KINDS[name].size)
    stages = [stage.blocks for stage in model.layers]
    for number, block in enumerate(block for stage in stages for block in stage):
        window, shift, pads_first = swin_windows(block)
        at = grid if number < len(stages[0]) else (grid[0] // 2, grid[1] // 2)
        found.append((number, global_matrix(matrices[number], at, window, shift, pads_first=pads_first)))
    return found


@pytest.mark.parametrize(
    "name", ["vit", "vit_registers", "deit_distilled", "cait", "siglip", "beit", "swin", "swin_padded"]
)
def test_image_attend_and_presence_equal_the_whole_matrix(name):
    view, batch = BackboneView(build(name)), images(name)
    with torch.no_grad(), view.open_tap(None) as tap:
        view(batch)
    found = image_matrices(name)
    assert view.image_blocks == [number for number, _ in found]
    for number, matrix in found:
        values = torch.rand(matrix.shape[:2])
        attended = view.image_attend(tap, number, values, batch.shape[-2:])
        assert torch.allclose(attended, (matrix @ values[..., None])[..., 0], atol=1e-5)
        presence = view.image_presence(tap, number, batch.shape[-2:])
        wanted = (matrix / matrix.sum(dim=2, keepdim=True)).sum(dim=1)
        assert torch.allclose(presence, wanted, atol=1e-4)


@pytest.mark.parametrize("name", ["pvt_v2", "pvt_v2_linear", "pvt", "hf_pvt"])
def test_keys_on_a_coarser_grid_are_shared_out(name):
    view, batch = BackboneView(build(name)), images(name)
    with torch.no_grad(), view.open_tap(None) as tap:
        view(batch)
    for number, step in enumerate(attention_steps(view.flow(batch.shape[-2:]))):
        count = step.grid[0] * step.grid[1]
        presence = view.image_presence(tap, number, batch.shape[-2:])
        assert presence.shape == (2, count)
        assert torch.allclose(presence.sum(dim=1), torch.tensor(float(count)), rtol=1e-4)
        attended = view.image_attend(tap, number, torch.ones(2, count), batch.shape[-2:])
        assert (attended < 1 - 1e-6).any() if step.prefix else torch.allclose(attended, torch.ones(2, count))
    presence = view.image_presence(tap, 0, batch.shape[-2:]).unflatten(1, view.token_grid_size(batch.shape[-2:]))
    cell = 4 if name != "pvt_v2_linear" else 1  # 4x4 tokens have one key in the first stage
    assert torch.allclose(presence[:, :cell, :cell], presence[:, :1, :1].expand(-1, cell, cell))


def test_image_tokens_that_do_not_attend_are_refused():
    view, batch = BackboneView(build("cait")), images("cait")
    with torch.no_grad(), view.open_tap(None) as tap:
        view(batch)
    for read in (
        lambda block: view.image_attend(tap, block, torch.ones(2, 24), (32, 48)),
        lambda block: view.image_presence(tap, block, (32, 48)),
    ):
        with pytest.raises(ValueError, match="in block -1 of Cait one query attends, no image token does"):
            read(-1)
    xcit = BackboneView(build("xcit"))
    assert xcit.image_blocks == []
    with pytest.raises(ValueError, match="mixes channels"):
        xcit.image_attend(tap, 0, torch.ones(2, 24), (32, 48))
