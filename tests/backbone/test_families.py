"""What every family must keep."""

import copy
import math

import pytest
import torch

from attnmix.attention.flow import attention_steps
from attnmix.attention.trace import Journey
from attnmix.backbone import BackboneView
from tests.backbone.families import CLASSES, FAMILIES, build, images

TRACEABLE = [name for name in FAMILIES if name != "xcit"]


def view_of(name, **options):
    return BackboneView(build(name, **options))


def run(name, view):
    with torch.no_grad(), view.open_tap(None) as tap:
        view(images(name))
    return tap


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_models_own_and_tokens_lie_on_the_grid(name):
    family, view, batch = FAMILIES[name], view_of(name), images(name)
    with torch.no_grad():
        own = view.model(batch)
        logits, tokens = view.forward_tokens(batch)
        own = own if torch.is_tensor(own) else own.logits
        assert view(batch).equal(own)
    assert logits.equal(own)
    rows, columns = (side // family.patch for side in family.size)
    assert view.grid_size(family.size) == (rows, columns)
    assert view.token_grid_size(family.size) == tuple(side // family.token_patch for side in family.size)
    assert view.patch_size == (family.patch, family.patch)
    assert view.token_patch_size == (family.token_patch, family.token_patch)
    assert tokens.shape == (2, rows * columns, view.embed_dim)
    assert (view.num_prefix_tokens, view.has_class_row) == (family.prefix, family.class_row)
    assert view.num_classes == CLASSES


def test_tokens_are_where_the_features_have_them():
    for name in ("swin", "pvt_v2", "pvt", "ca_swin", "hf_swin", "hf_pvt"):
        view, batch = view_of(name), images(name)
        rows, columns = view.grid_size(batch.shape[-2:])
        with torch.no_grad():
            tokens = view.forward_tokens(batch)[1]
            if name.startswith("hf"):
                features = view.layout.backbone(batch).last_hidden_state
            else:
                features = view.model.forward_features(batch)
        if name == "swin":
            expected = features[:, rows - 1, 0]
        elif name == "pvt_v2":
            expected = features[:, :, rows - 1, 0]
        else:
            expected = features[:, view.num_prefix_tokens + (rows - 1) * columns]
        assert tokens[:, (rows - 1) * columns].equal(expected), name


@pytest.mark.parametrize("name", FAMILIES)
def test_classify_is_the_models_head_after_pooling(name):
    model, view = (lambda v: (v.model, v))(view_of(name))
    pooled = torch.randn(4, view.embed_dim)
    with torch.no_grad():
        if name == "hf_deit_teacher":
            expected = (model.cls_classifier(pooled) + model.distillation_classifier(pooled)) / 2
        elif name == "hf_dinov2":
            expected = model.classifier(torch.cat((pooled, pooled), dim=1))
        elif name.startswith("hf_"):
            expected = model.classifier(pooled)
        elif name == "deit_distilled":
            expected = (model.head(pooled) + model.head_dist(pooled)) / 2
        elif name.startswith(("swin", "ca_swin")):
            expected = model.head.fc(pooled)
        elif name in ("siglip", "vit_pool", "eva_pool", "vit_prr"):
            expected = model.head(model.fc_norm(model.attn_pool(pooled[:, None])))
        else:
            expected = model.head(getattr(model, "fc_norm", torch.nn.Identity())(pooled))
        assert torch.allclose(view.classify(pooled), expected, atol=1e-5)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_attention_calls_are_counted_and_shaped_as_the_flow_says(name, fused):
    view = view_of(name, fused=fused)
    tap = run(name, view)
    steps = attention_steps(view.flow(FAMILIES[name].size))
    assert len(steps) == view.num_attention_calls == len(tap._recorder.shapes)
    for number, step in enumerate(steps):
        probabilities = tap.probabilities(number)
        assert tuple(probabilities.shape[2:]) == step.shape
        assert probabilities.shape[0] == 2 * step.windows


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", TRACEABLE)
def test_uniform_values_stay_what_they_are(name, residual):
    view, size = view_of(name), FAMILIES[name].size
    tap = run(name, view)
    count = math.prod(view.token_grid_size(size))
    values = Journey(
        view.flow(size), torch.full((2, count), 0.3), torch.full((2,), 0.3), residual=residual
    ).follow(tap.attend)
    assert values.dtype == torch.float32
    assert torch.allclose(values, torch.tensor(0.3), atol=1e-6)
    assert torch.allclose(view.readout(values), torch.full((2,), 0.3), atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_is_read_on_the_final_grid(name):
    family, view = FAMILIES[name], view_of(name)
    tap = run(name, view)
    count = math.prod(view.grid_size(family.size))
    for block, step in enumerate(attention_steps(view.flow(family.size))):
        if step.has_class_row:
            row = view.class_attention(tap, block, family.size)
            assert row.shape == (2, count)
            assert torch.allclose(row.sum(dim=1), torch.ones(2), atol=1e-5)
            assert row.equal(view.class_attention(tap, block - view.num_attention_calls, family.size))
        if not (name == "xcit" and block < 2):
            scores = view.image_attention(tap, block, family.size)
            assert scores.shape == (2, count)
            prefix = tap.probabilities(block).shape[3] - math.prod(step.key_grid) * (step.windows == 1)
            if step.windows == 1 and prefix == 0:
                assert torch.allclose(scores.sum(dim=1), torch.ones(2), atol=1e-5)


@pytest.mark.parametrize("name", ["vit_registers", "siglip", "cait", "beit"])
def test_on_one_grid_attention_is_the_taps(name):
    family, view = FAMILIES[name], view_of(name)
    tap = run(name, view)
    for block in range(view.num_attention_calls):
        assert view.image_attention(tap, block, family.size).equal(tap.image_attention(block))
    assert view.class_attention(tap, -1, family.size).equal(tap.class_attention(-1))


def test_early_blocks_of_pvt_have_no_prefix_token_though_the_last_ones_do():
    view, size = view_of("pvt"), FAMILIES["pvt"].size
    tap = run("pvt", view)
    scores = view.image_attention(tap, 0, size)  # 8x16 queries, 2x4 keys, final grid 2x4
    assert torch.allclose(scores, tap.probabilities(0).mean(dim=(1, 2)), atol=1e-6)
    last = tap.probabilities(-1)[:, :, 1:, 1:].mean(dim=(1, 2))
    assert torch.allclose(view.image_attention(tap, -1, size), last, atol=1e-6)


def test_a_finer_grid_of_keys_is_summed_up_on_the_final_one():
    view, size = view_of("swin_dynamic"), FAMILIES["swin_dynamic"].size  # 12x10 tokens, then 6x5
    tap = run("swin_dynamic", view)
    step = attention_steps(view.flow(size))[0]
    fine = step.fold(step.image_attention(tap.call(0)))
    coarse = fine.unflatten(2, (5, 2)).unflatten(1, (6, 2)).sum(dim=(2, 4))
    assert torch.allclose(view.image_attention(tap, 0, size).unflatten(1, (6, 5)), coarse, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_hold_their_attention_call_and_take_the_tokens_first(name):
    view = view_of(name)
    calls, seen = view.open_tap(None), []

    def look(number):
        return lambda module, args: seen.append((number, len(calls._recorder.shapes), args[0].shape))

    hooks = [block.register_forward_pre_hook(look(number)) for number, block in enumerate(view.blocks)]
    with torch.no_grad(), calls:
        view(images(name))
    for hook in hooks:
        hook.remove()
    steps = attention_steps(view.flow(FAMILIES[name].size))
    assert [number for number, _, _ in seen] == list(range(len(view.blocks)))
    for number, calls_before, shape in seen:
        assert calls_before == number  # block k starts right before call k
        assert math.prod(shape[1:-1]) == view.block_prefix(number) + math.prod(steps[number].grid)
        assert shape[-1] == view.block_width(number)


def test_blocks_leave_out_pools_and_class_blocks_that_take_the_class_token_apart():
    left_out = {name: view.num_attention_calls - len(view.blocks) for name in FAMILIES for view in [view_of(name)]}
    assert {name: count for name, count in left_out.items() if count} == {
        "siglip": 1,
        "vit_pool": 1,
        "vit_prr": 1,
        "eva_pool": 1,
        "cait": 2,
        "ca_swin": 1,
    }
    view = view_of("ca_swin")
    with pytest.raises(ValueError, match="block -1 of ClassAttentionSwin takes no sequence of tokens; 0 to 2 do"):
        view.block_width(-1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_copy_is_of_the_copied_model_and_the_model_is_left_as_it_was(name):
    model = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modules, hooks = list(model.modules()), [len(module._forward_hooks) for module in model.modules()]
    view = BackboneView(model)
    twin = copy.deepcopy(view)
    assert twin.model is not model
    assert twin.layout.model is twin.model
    run(name, view)
    assert list(model.modules()) == modules
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        for parameter in twin.model.parameters():
            parameter.zero_()
        assert not twin(images(name)).equal(view(images(name)))
        assert not twin.forward_tokens(images(name))[0].equal(view(images(name)))


REASONS = {
    None: ("vit", "vit_registers", "deit_distilled", "cct", "hf_vit", "hf_deit_teacher", "hf_dinov2"),
    "its relative position bias is made for a fixed number of keys": ("beit", "vit_relative", "swin", "hf_swin"),
    "its rotary positions are made for a fixed number of keys": ("eva02",),
    "its query pools the tokens": ("siglip", "vit_prr"),
    "its heads talk to each other": (),
    "only its class token attends": ("cait", "xcit", "ca_swin"),
    "its keys are laid out on a grid": ("pvt", "pvt_v2", "hf_pvt"),
}


@pytest.mark.parametrize(
    ("reason", "name"), [(reason, name) for reason, names in REASONS.items() for name in names]
)
def test_where_tokens_may_be_appended(reason, name):
    view = view_of(name)
    assert view.appendable(-1) == reason
    assert view.appendable(0) == "no block comes before it"


def test_why_tokens_may_not_be_appended():
    assert view_of("cait").appendable(1) == "its heads talk to each other"
    assert view_of("xcit").appendable(1) == "its channels attend, not its tokens"
    assert view_of("vit", fused=False).appendable(1).startswith("its attention is not fused")
    assert view_of("hf_vit", fused=False).appendable(1).startswith("its attention is not fused")
    from timm.models.vision_transformer import ParallelScalingBlock

    assert view_of("vit", block_fn=ParallelScalingBlock).appendable(1) == "its attention is one with its MLP"


@pytest.mark.parametrize("name", ["vit", "cait", "xcit", "swin", "pvt_v2", "pvt", "ca_swin", "hf_vit", "hf_swin"])
def test_gradient_checkpointing_is_seen(name):
    view = view_of(name)
    assert view.grad_checkpointing is False
    if name.startswith("hf_"):
        view.model.activation_checkpointing_enable()
    else:
        view.model.set_grad_checkpointing()
    assert view.grad_checkpointing is True


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("swin", (24, 20), "image width 20: SwinTransformer takes 16 pixels only; create it with strict_img_size"),
        ("swin_dynamic", (24, 21), "image width 21 is not a multiple of the patch, 4 pixels; 20 would be"),
        ("pvt_v2", (40, 64), "image height 40 is not a multiple of the patch, 16 pixels; 32 would be"),
        ("pvt", (33, 64), "image height 33 is not a multiple of what its stages need, 16 pixels; 32 would be"),
        ("xcit", (32, 42), "image width 42 is not a multiple of the patch, 8 pixels; 40 would be"),
        ("hf_vit", (32, 40), "image width 40: ViTForImageClassification takes 32 pixels only; set image_size"),
        ("hf_pvt", (32, 64), "image height 32: PvtForImageClassification takes 64 pixels only"),
        ("hf_dinov2", (33, 32), "image height 33 is not a multiple of the patch, 8 pixels; 32 would be"),
    ],
)
def test_image_sizes_that_do_not_fit_are_refused(name, size, message):
    with pytest.raises(ValueError, match=message):
        view_of(name).grid_size(size)


def test_first_tokens_need_only_their_own_patches():
    assert view_of("pvt_v2").token_grid_size((40, 64)) == (10, 16)
    assert view_of("swin_dynamic").token_grid_size((22, 16)) == (11, 8)
    with pytest.raises(ValueError, match="image height 23 is not a multiple of the patch, 2 pixels; 24 would be"):
        view_of("swin_dynamic").token_grid_size((23, 16))
    with pytest.raises(ValueError, match="windows of 4 tokens do not fit a stage whose grid has a side of 3"):
        view_of("hf_swin").flow((12, 16))


def test_swin_in_transformers_with_absolute_positions_takes_one_size():
    view = view_of("hf_swin")
    assert view.token_grid_size((24, 32)) == (12, 16)
    view.model.config.use_absolute_embeddings = True
    with pytest.raises(ValueError, match="image width 32: SwinForImageClassification takes 24 pixels only"):
        view.token_grid_size((24, 32))


@pytest.mark.parametrize(
    "name", ["vit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("swin", "pvt_v2", "hf_vit"))]
)
def test_compiled_models_stay_compiled_and_their_attention_is_read(name):
    view = BackboneView(torch.compile(build(name), backend="aot_eager"))
    batch, plain = images(name), BackboneView(build(name))
    with torch.no_grad(), view.open_tap([0]) as tap:
        logits, tokens = view.forward_tokens(batch)
    expected_logits, expected_tokens = plain.forward_tokens(batch)
    assert torch.allclose(logits, expected_logits, atol=1e-4)
    assert torch.allclose(tokens, expected_tokens, atol=1e-4)
    scores = plain.image_attention(run(name, plain), 0, FAMILIES[name].size)
    assert torch.allclose(view.image_attention(tap, 0, FAMILIES[name].size), scores, atol=1e-5)


def test_attention_checks_at_bind_time():
    xcit, swin, vit, cait = (view_of(name) for name in ("xcit", "swin", "vit", "cait"))
    assert xcit.check_block(-1) == 3
    with pytest.raises(ValueError, match="block 4 is none of the 4 of Xcit: -4 to 3"):
        xcit.check_block(4)
    xcit.check_guide([-1], "class")
    with pytest.raises(ValueError, match="block 1 of Xcit mixes channels, not tokens: of XCiT's blocks, only the"):
        xcit.check_guide([1], "image")
    with pytest.raises(ValueError, match="block 0 of Xcit mixes channels"):
        xcit.check_guide(None, "image-rollout")
    with pytest.raises(ValueError, match="block -1 of SwinTransformer has no class row: use image attention"):
        swin.check_guide([-1], "class")
    swin.check_guide(None, "image-rollout")
    for view in (vit, cait):
        view.check_guide(None, "class-rollout")
        view.check_traceable()
    for name in ("pvt", "ca_swin"):
        with pytest.raises(ValueError, match="does not have the same tokens in all blocks"):
            view_of(name).check_guide(None, "class-rollout")
    with pytest.raises(ValueError, match="block 0 of Cait has no class row"):
        cait.check_guide([0], "class")
    with pytest.raises(ValueError, match="Xcit mixes channels.*class_blocks_only=True traces"):
        xcit.check_traceable()
    xcit.check_traceable(class_blocks_only=True)
    with pytest.raises(ValueError, match="SwinTransformer has no class-attention blocks: leave class_blocks_only"):
        swin.check_traceable(class_blocks_only=True)


def test_reading_what_is_not_there_is_refused():
    size = FAMILIES["xcit"].size
    xcit = view_of("xcit")
    tap = run("xcit", xcit)
    for read in (xcit.class_attention, xcit.image_attention):
        with pytest.raises(ValueError, match="block 0 of Xcit mixes channels"):
            read(tap, 0, size)
    with pytest.raises(ValueError, match="block 0 of Cait has no class row: use image attention"):
        view_of("cait").class_attention(tap, 0, size)
    vit = view_of("vit")
    tap = run("vit", vit)
    with pytest.raises(ValueError, match="block -1 of VisionTransformer attended from 25 to 25 tokens, but for"):
        vit.class_attention(tap, -1, (32, 32))
    with pytest.raises(ValueError, match="block 7 is none of the 2"):
        vit.image_attention(tap, 7, size)


def test_models_that_do_not_pool_and_blocks_with_several_attentions_are_refused():
    from timm.models.vision_transformer import ParallelThingsBlock

    with pytest.raises(ValueError, match="VisionTransformer has global_pool='', so that it classifies no image"):
        view_of("vit", global_pool="")
    with pytest.raises(ValueError, match=r"several attention layers each \(ParallelThingsBlock\)"):
        view_of("vit", block_fn=ParallelThingsBlock)
    with pytest.raises(ValueError, match=r"several attention layers each \(Block\)"):
        view_of("vit", attn_layer="diff")


def test_subclasses_of_a_family_are_of_that_family():
    base = type(build("vit"))
    own = type("OwnViT", (base,), {})
    assert BackboneView(own(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2)).name == "OwnViT"
