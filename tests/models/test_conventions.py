"""What code elsewhere relies on, kept by every family."""

import copy

import pytest
import timm
import torch
from timm.models import group_parameters
from torch import nn

import attnmix.models
from tests.models.tiny import NUM_CLASSES, TINY, tiny, unfuse

PREFIX = {"pvt_tiny": 1, "cct_7_3x1_32": 0, "vit_lite_7_4_32": 1, "ca_swin_tiny_patch4_window7_224": 1}
POOL = {"pvt_tiny": "token", "cct_7_3x1_32": "seq", "vit_lite_7_4_32": "token"}

every_family = pytest.mark.parametrize("name", TINY)


def images(name: str, batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, *TINY[name][1])


@pytest.mark.parametrize("name", attnmix.models.MODELS)
def test_timm_knows_the_name_and_a_configuration(name):
    assert timm.list_models(name) == [name]
    config = timm.get_pretrained_cfg(name)
    small = name.endswith("_32")
    assert config.input_size == ((3, 32, 32) if small else (3, 224, 224))
    assert config.num_classes == (10 if small else 1000)
    assert config.crop_pct == (1.0 if small else 0.9 if "swin" in name else 0.875)
    assert config.fixed_input_size is not name.startswith("pvt")
    assert config.mean == ((0.4914, 0.4822, 0.4465) if small else (0.485, 0.456, 0.406))
    assert config.std == ((0.2470, 0.2435, 0.2616) if small else (0.229, 0.224, 0.225))


@every_family
def test_configuration_names_the_first_convolution_and_the_classifier(name):
    model = tiny(name)
    convolution = model.get_submodule(model.pretrained_cfg["first_conv"])
    assert isinstance(convolution, nn.Conv2d)
    assert convolution.in_channels == 3
    assert model.get_submodule(model.pretrained_cfg["classifier"]) is model.get_classifier()
    assert model.get_classifier().out_features == NUM_CLASSES


@every_family
def test_features_are_the_whole_sequence_and_forward_is_head_of_features(name):
    model = tiny(name).eval()
    rows, columns = TINY[name][2]
    x = images(name)
    features = model.forward_features(x)
    assert model.num_prefix_tokens == PREFIX[name]
    assert model.global_pool == POOL.get(name, "token")
    assert features.shape == (2, PREFIX[name] + rows * columns, model.num_features)
    assert model.head_hidden_size == model.num_features
    assert model.embed_dim in (model.num_features, TINY[name][0].get("embed_dim"))
    assert model(x).equal(model.forward_head(features))
    assert model(x).shape == (2, NUM_CLASSES)
    assert not model(x)[0].allclose(model(x)[1])
    assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)
    assert model.feature_info[-1]["num_chs"] == model.num_features
    assert (getattr(model, "cls_token", None) is not None) == (PREFIX[name] == 1)


@every_family
def test_head_reads_a_token_repeated_as_that_token(name):
    model = tiny(name).eval()
    token = torch.randn(3, model.num_features)
    expected = model.get_classifier()(token)
    for length in (1, 2, 7):
        sequence = token[:, None].expand(-1, model.num_prefix_tokens + length, -1)
        assert torch.allclose(model.forward_head(sequence), expected, atol=1e-5)


@every_family
def test_every_parameter_gets_a_gradient(name):
    model = tiny(name).train()
    nn.functional.cross_entropy(model(images(name)), torch.tensor([0, 3])).backward()
    without = [key for key, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    # softmax is blind to a shift that is the same for every key
    assert [key for key in without if key not in ("seq_pool.bias", "class_block.attn.k.bias")] == []


@every_family
def test_gradient_checkpointing_changes_no_gradient(name, monkeypatch):
    plain = tiny(name).train()
    checkpointed = copy.deepcopy(plain)
    checkpointed.set_grad_checkpointing(True)
    calls = []
    original = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", lambda *a, **k: calls.append(1) or original(*a, **k))
    x = images(name)
    for model in (plain, checkpointed):
        model(x).square().sum().backward()
    for (key, expected), parameter in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        assert torch.allclose(parameter.grad, expected.grad, atol=1e-5), key
    blocks = sum(hasattr(module, "attn") for module in plain.modules())
    assert len(calls) == blocks
    checkpointed.set_grad_checkpointing(False)
    checkpointed(x)
    assert len(calls) == blocks


@every_family
def test_fused_and_unfused_attention_agree(name):
    model = tiny(name).eval()
    x = images(name)
    expected = model(x)
    assert unfuse(model) > 0
    assert torch.allclose(model(x), expected, atol=1e-5)


@every_family
def test_state_dict_round_trip(name):
    model = tiny(name).eval()
    other = timm.create_model(name, num_classes=NUM_CLASSES, **TINY[name][0]).eval()
    x = images(name)
    assert not other(x).allclose(model(x))
    other.load_state_dict(model.state_dict(), strict=True)
    assert other(x).equal(model(x))


@every_family
def test_reset_classifier(name):
    model = tiny(name).eval()
    x = images(name)
    rows, columns = TINY[name][2]
    before = model.forward_features(x)
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.num_classes == 3
    assert model.forward_features(x).equal(before)
    pooled = model.forward_head(before, pre_logits=True)
    model.reset_classifier(0)
    assert model(x).equal(pooled)
    model.reset_classifier(0, "")
    assert model(x).shape == (2, PREFIX[name] + rows * columns, model.num_features)
    model.reset_classifier(4, POOL.get(name, "token"))
    assert model(x).shape == (2, 4)


@pytest.mark.parametrize("name", [name for name in TINY if name != "vit_lite_7_4_32"])
def test_a_pool_the_family_does_not_have_is_refused(name):
    with pytest.raises(ValueError, match=f"global_pool 'avg': .*'{POOL.get(name, 'token')}' or '' would do"):
        tiny(name, global_pool="avg")
    with pytest.raises(ValueError, match="global_pool 'max'"):
        tiny(name).reset_classifier(2, "max")


@every_family
def test_other_channels(name):
    assert tiny(name, in_chans=1)(images(name, channels=1)).shape == (2, NUM_CLASSES)


RATES = ("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "pos_drop_rate")


@pytest.mark.parametrize(
    ("name", "rate"),
    # Swin has no positions to drop
    [(name, rate) for name in TINY for rate in RATES if "swin" not in name or rate != "pos_drop_rate"],
)
def test_each_rate_acts_in_training_alone(name, rate):
    model = tiny(name, **{rate: 0.5})
    x = images(name, batch=8)
    assert tiny(name).eval()(x).equal(model.eval()(x))
    model.train()
    assert not model(x).allclose(model(x))


@every_family
def test_attention_dropout_goes_through_fused_attention(name, monkeypatch):
    rates = []
    original = nn.functional.scaled_dot_product_attention

    def spy(*args, **kwargs):
        assert args[0].ndim == 4
        rates.append(kwargs["dropout_p"])
        return original(*args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", spy)
    model = tiny(name, attn_drop_rate=0.3).train()
    model(images(name))
    fused = sum(getattr(module, "fused_attn", False) for module in model.modules())
    assert rates == [0.3] * fused
    assert fused == sum(hasattr(module, "attn") for module in model.modules()) or name.startswith("ca_swin")


@every_family
def test_parameters_without_decay_exist_and_hold_the_class_token(name):
    model = tiny(name)
    names = {key for key, _ in model.named_parameters()}
    listed = model.no_weight_decay()
    assert ("cls_token" in listed) or PREFIX[name] == 0
    if name not in ("cct_7_3x1_32", "vit_lite_7_4_32"):  # timm's ViT lists what some of its kinds do not have
        assert listed <= names


@every_family
@pytest.mark.parametrize("coarse", [False, True])
def test_layer_groups_follow_depth(name, coarse):
    model = tiny(name)
    layer = group_parameters(model, model.group_matcher(coarse), reverse=True)
    assert set(layer) == {key for key, _ in model.named_parameters()}
    first = model.pretrained_cfg["first_conv"] + ".weight"
    classifier = model.pretrained_cfg["classifier"] + ".weight"
    assert layer[first] == 0
    assert layer[classifier] == max(layer.values())
    if name == "pvt_tiny":
        assert layer["stages.3.blocks.1.mlp.fc1.weight"] > layer["stages.2.blocks.0.mlp.fc1.weight"] > 0
        assert layer["stages.3.pos_embed"] == layer["cls_token"] == layer["stages.3.blocks.0.norm1.weight"]
        assert (layer["stages.3.blocks.1.norm1.weight"] > layer["cls_token"]) is not coarse
    if name.startswith("ca_swin"):
        above = layer["class_block.attn.q.weight"] - layer["layers.1.blocks.0.attn.qkv.weight"]
        assert above == (0 if coarse else 1)
        assert layer["cls_token"] == layer["class_block.mlp.fc1.weight"]


def test_weights_start_as_in_the_papers():
    torch.manual_seed(0)
    pvt = timm.create_model("pvt_tiny")
    cct = timm.create_model("cct_7_3x1_32")
    swin = timm.create_model("ca_swin_tiny_patch4_window7_224")
    near = {"rel": 0.1}
    for weight in (
        pvt.stages[2].pos_embed,
        pvt.cls_token,
        pvt.stages[0].blocks[0].attn.kv.weight,
        cct.blocks[0].attn.qkv.weight,
        cct.seq_pool.weight,
        swin.cls_token,
        swin.class_block.attn.k.weight,
        swin.class_block.mlp.fc2.weight,
        timm.create_model("vit_lite_7_4_32").pos_embed,
    ):
        assert weight.std().item() == pytest.approx(0.02, **near)
    assert not swin.class_block.attn.q.bias.any()
    assert not cct.seq_pool.bias.any()
    assert cct.pos_embed.std().item() == pytest.approx(0.2, **near)
    assert cct.patch_embed.proj[0].weight.std().item() == pytest.approx((2 / 27) ** 0.5, **near)
