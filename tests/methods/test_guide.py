"""Whose attention guides TransMix and SMMix: every quantity, every block, and other models' too."""

import copy
import json

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import ViTConfig, ViTForImageClassification

import attnmix
from attnmix.methods.frozen import as_seen_by, channels_of
from attnmix.methods.guide import ATTENTIONS, AttentionGuide
from tests import references
from tests.conftest import NUM_CLASSES
from tests.methods.settings import NAMES, has_option, options_for

SIZE, GRID = (16, 24), (4, 6)


def make_task(name, model, **options):
    options = {"mixup_prob": 0.0, **options}
    return attnmix.MixTask(model, attnmix.create_method(name, num_classes=NUM_CLASSES, **options))


def make_batch(batch=4):
    return torch.randn(batch, 3, *SIZE), torch.arange(batch) % NUM_CLASSES


def wanted_scores(model, images, attention, block):
    """Each quantity in plain words, from the unfused model; [B, N], any scale."""
    maps = [found.mean(dim=1) for found in references.unfused_attention(model, images)]
    prefix = model.num_prefix_tokens
    if attention == "class":
        return maps[block][:, 0, prefix:]
    if attention == "image":
        return maps[block][:, prefix:, prefix:].mean(dim=1)
    if attention == "image-rollout":
        return torch.stack([found[:, prefix:, prefix:].mean(dim=1) for found in maps]).mean(dim=0)
    product = maps[0]
    for found in maps[1:]:
        product = found @ product
    return product[:, 0, prefix:]


CASES = [("class", -1), ("class", 0), ("image", -1), ("image", 1), ("class-rollout", -1), ("image-rollout", -1)]


@pytest.mark.parametrize("external", [False, True], ids=["self", "provider"])
@pytest.mark.parametrize(("attention", "block"), CASES)
def test_transmix_weighs_by_the_quantity_it_is_told(make_vit, attention, block, external):
    model = make_vit()
    other = make_vit(depth=2).eval() if external else None
    if external:
        for parameter in other.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    task = make_task(
        "transmix",
        model,
        attention=attention,
        block=block,
        provider=other,
        attention_share=1.0,
        mask_to_grid="area",
    )
    mixed = task(*make_batch())["mixed"]
    scores = wanted_scores(other or model, mixed.images, attention, block)
    inside = F.adaptive_avg_pool2d(mixed.source_mask.float(), GRID).flatten(1)
    assert torch.allclose(mixed.source_weight, (scores * inside).sum(1) / scores.sum(1), atol=1e-5)


@pytest.mark.parametrize("external", [False, True], ids=["self", "provider"])
@pytest.mark.parametrize(("attention", "block"), CASES)
def test_smmix_places_windows_by_the_quantity_it_is_told(make_vit, attention, block, external):
    model = make_vit()
    other = make_vit(depth=2).eval() if external else None
    if external:
        for parameter in other.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    task = make_task("smmix", model, attention=attention, block=block, provider=other)
    images, labels = make_batch()
    scores = wanted_scores(other or copy.deepcopy(model).eval(), images, attention, block).unflatten(1, GRID)
    out = task(images, labels)
    draw = out["mixed"].draw
    window = (draw.box[0, 2:] // 4).tolist()
    for i, partner in enumerate(out["mixed"].source_index.tolist()):
        assert tuple((draw.box[i, :2] // 4).tolist()) == references.best_window(scores[i], window, largest=False)
        source = (draw.box[i, :2] + draw.offset[i]) // 4
        assert tuple(source.tolist()) == references.best_window(scores[partner], window, largest=True)
    if external:  # it motivates by its predictions too
        with torch.no_grad():
            clean = other(images)
        weight, partner = out["mixed"].source_weight[:, None], out["mixed"].source_index
        teacher = (1 - weight) * clean.softmax(1) + weight * clean.softmax(1)[partner]
        wanted = F.kl_div(out["output"].log_softmax(1), teacher, reduction="batchmean")
        assert torch.allclose(out["losses"]["consistency"], wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["transmix", "smmix"])
def test_random_scores_come_from_the_methods_seed_and_from_no_model(make_vit, name):
    options = {"attention": "random", **({"consistency": False} if name == "smmix" else {})}
    images, labels = make_batch()
    steps = []
    for model, seed in ((make_vit(), 0), (make_vit(depth=1), 0), (make_vit(), 1)):
        calls = []
        model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        task = make_task(name, model, seed=seed, **options)
        mixed = task(images, labels)["mixed"]
        steps.append(mixed.images.sum() + mixed.source_weight.sum())
        assert len(calls) == (name == "transmix")  # the training forward (SMMix's goes by forward_features)
    assert steps[0].equal(steps[1])
    assert not steps[0].equal(steps[2])


def test_a_provider_is_neither_trained_nor_saved_and_stays_as_it_was(make_vit):
    model, other = make_vit(), make_vit(drop_path_rate=0.3).train()
    before = copy.deepcopy(other.state_dict())
    task = make_task("smmix", model, provider=other)
    task(*make_batch())["loss"].backward()
    ours = {id(parameter) for parameter in task.parameters()}
    assert not ours & {id(parameter) for parameter in other.parameters()}
    assert all(parameter.grad is None for parameter in other.parameters())
    assert set(task.state_dict()) == {f"trainable_module.model.{key}" for key in model.state_dict()}
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    assert other.training


def test_a_provider_of_another_grid_is_brought_to_the_models(make_vit):
    model, other = make_vit(), make_vit(patch_size=8)
    mixed = make_task("smmix", model, provider=other).mix(*make_batch())
    assert mixed.source_mask.flatten(1).any(dim=1).all()
    for patch in (4, 8):  # 2 x 3 tokens; and 4 x 6 for a model of 2 x 3
        model, other = make_vit(patch_size=12 - patch), make_vit(patch_size=patch).eval()
        task = make_task("transmix", model, provider=other, attention_share=1.0, mask_to_grid="area")
        mixed = task(*make_batch())["mixed"]
        scores = wanted_scores(other, mixed.images, "class", -1).unflatten(1, (16 // patch, 24 // patch))
        pixels = scores.repeat_interleave(patch, 1).repeat_interleave(patch, 2)  # what each pixel is given
        cells = F.avg_pool2d(pixels[:, None], 12 - patch)[:, 0]
        inside = F.avg_pool2d(mixed.source_mask.float()[:, None], 12 - patch)[:, 0]
        wanted = (cells * inside).sum((1, 2)) / cells.sum((1, 2))
        assert torch.allclose(mixed.source_weight, wanted, atol=1e-5)


def test_a_provider_sees_images_normalised_as_it_was_trained(make_vit):
    model, other = make_vit(), make_vit()
    other.load_state_dict(model.state_dict())
    images, labels = make_batch()
    plain = make_task("transmix", model, provider=other)(images, labels)["mixed"].source_weight
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    other.pretrained_cfg = {"mean": (0.0, 0.0, 0.0), "std": (0.25, 0.25, 0.25)}
    seen = []
    other.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    weight = make_task("transmix", model, provider=other)(images, labels)["mixed"]
    assert torch.allclose(seen[0], (weight.images * 0.5 + 0.5) / 0.25, atol=1e-5)
    assert not torch.allclose(weight.source_weight, plain)


def test_a_provider_by_name_and_from_an_exported_folder(make_vit, tmp_path):
    small = {"pretrained": False, "img_size": SIZE, "patch_size": 4, "depth": 1, "num_classes": NUM_CLASSES}
    task = make_task("transmix", make_vit(), provider="vit_tiny_patch16_224", provider_options=small)
    assert len(task.method.label.guide.provider.model.blocks) == 1
    model = timm.create_model("vit_tiny_patch16_224", **small)
    options = {key: small[key] for key in ("img_size", "patch_size", "depth")}
    _export(model, tmp_path, options)
    (tmp_path / "run").mkdir()
    (tmp_path / "model.safetensors").rename(tmp_path / "run" / "model.safetensors")
    (tmp_path / "config.json").rename(tmp_path / "run" / "config.json")
    (tmp_path / "run").rename(tmp_path / "model")
    loaded = make_task("transmix", make_vit(), provider=str(tmp_path)).method.label.guide.provider.model
    direct = make_task("transmix", make_vit(), provider=str(tmp_path / "model")).method.label.guide.provider.model
    assert direct.head.weight.equal(loaded.head.weight)
    assert all(one.equal(two) for one, two in zip(loaded.parameters(), model.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def _export(model, folder, options):
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": NUM_CLASSES, "model_args": options}
    (folder / "config.json").write_text(json.dumps({**config, "pretrained_cfg": {"num_classes": NUM_CLASSES}}))


def test_a_guide_costs_no_step_that_pastes_nothing(make_vit):
    other, seen = make_vit(), []
    other.register_forward_pre_hook(lambda *_: seen.append(1))
    for name in ("transmix", "smmix"):
        make_task(name, make_vit(), provider=other, mixup_prob=1.0)(*make_batch())
    assert not seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("colour", -1), 'attention is "colour", but must be one of class, image, class-rollout'),
        (("image", 1.5), "block is 1.5, but must be a whole number, counted from 0; -1 is the last"),
        (("image-rollout", True), "block is True, but must be a whole number"),
        (("image", -1, None, {"depth": 2}), "provider_options {'depth': 2} need a provider given by name"),
        (("image", -1, "vit_tinny", {}), "provider 'vit_tinny' is neither the folder of a run nor a model"),
        (("image", -1, "./nowhere", {}), "provider './nowhere' holds no exported model .*OUT/model"),
    ],
)
def test_wrong_guides_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionGuide(*arguments)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if has_option(name, "block") and has_option(name, "attention")]
)
def test_a_block_is_a_whole_number(make_vit, name):
    with pytest.raises(ValueError, match=r"block is 1\.5, but must be a whole number"):
        make_task(name, make_vit(), **{**options_for(name, make_vit), "block": 1.5})


def test_images_of_another_number_of_channels_are_left_as_they_are():
    model, other = torch.nn.Identity(), torch.nn.Identity()
    model.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    other.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    for channels in (1, 4):
        images = torch.randn(2, channels, 5, 6)
        assert as_seen_by(images, model, other).equal(images)
    images = torch.randn(2, 3, 5, 6)
    assert not as_seen_by(images, model, other).equal(images)
    other.pretrained_cfg = {"mean": (0.5,), "std": (0.5,)}
    assert as_seen_by(images, model, other).equal(images)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_model_says_how_many_channels_it_takes(make_vit, channels):
    assert channels_of(make_vit(in_chans=channels)) == channels
    xcit = timm.create_model("xcit_nano_12_p8_224", in_chans=channels, depth=1)  # several convolutions
    assert xcit.pretrained_cfg["input_size"][0] == 3
    assert channels_of(xcit) == channels
    small = {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 1, 1, 1)}
    pvt = timm.create_model("pvt_tiny", in_chans=channels, **small)
    assert channels_of(pvt) == channels
    config = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, num_channels=channels)
    assert channels_of(ViTForImageClassification(config)) == channels


def test_what_no_layer_says_of_channels_may_stand_in_the_configuration():
    model = torch.nn.Linear(2, 2)
    assert channels_of(model) is None
    model.pretrained_cfg = {"input_size": (1, 28, 28), "mean": (0.5,), "std": (0.5,)}
    assert channels_of(model) == 1
    model.pretrained_cfg["mean"] = (0.5,) * 3
    assert channels_of(model) is None


def test_what_a_model_cannot_give_is_said_when_the_task_is_made(make_vit):
    averaged = {"class_token": False, "global_pool": "avg"}
    for attention, other in (("class", "image"), ("class-rollout", "image-rollout")):
        with pytest.raises(ValueError, match=f'no class token .* SMMix could read; use attention="{other}"'):
            make_task("smmix", make_vit(**averaged), attention=attention)
    with pytest.raises(ValueError, match='TransMix could read; use attention="image"'):
        make_task("transmix", make_vit(), provider=make_vit(**averaged))
    for block in (3, -4):
        with pytest.raises(ValueError, match=f"block {block} .*3"):
            make_task("transmix", make_vit(), block=block)
    with pytest.raises(ValueError, match="predicts 7 classes, not 5: .*consistency=False"):
        make_task("smmix", make_vit(), provider=make_vit(num_classes=7))
    make_task("smmix", make_vit(), provider=make_vit(num_classes=7), consistency=False)
    strict = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=1, num_classes=NUM_CLASSES)
    with pytest.raises(ValueError, match="provider VisionTransformer does not take these images: .*16.*32"):
        make_task("smmix", make_vit(), provider=strict)(*make_batch())
    with pytest.raises(ValueError, match="looks at no model"):
        make_task("smmix", make_vit(), provider=make_vit(), attention="random")


def test_every_attention_is_tried_here():
    assert set(ATTENTIONS) == {attention for attention, _ in CASES} | {"random"}
