import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import attnmix
from attnmix.methods.attentivemix import patch_counts, patches_to_pixels
from attnmix.methods.patch_saliency import feature_saliency
from attnmix.mixing.patch_masks import top_cells
from tests import references
from tests.conftest import NUM_CLASSES

SIZE, GRID = (16, 24), (4, 6)


class Maps(nn.Module):
    """A CNN by what a method knows of one: its last map, here of `stride` pixels and with dropout."""

    def __init__(self, stride=4, output_fmt="NCHW", channels=3):
        super().__init__()
        self.convolution = nn.Conv2d(channels, 5, stride, stride)
        self.drop = nn.Dropout(0.5)
        self.output_fmt = output_fmt
        self.seen = []

    def forward_features(self, images):
        self.seen.append(images)
        features = self.drop(self.convolution(images))
        return features.permute(0, 2, 3, 1) if self.output_fmt == "NHWC" else features


def make_task(model, **options):
    options = {"mixup_prob": 0.0, "provider": "self", **options}
    return attnmix.MixTask(model, attnmix.create_method("attentivemix", num_classes=NUM_CLASSES, **options))


def make_batch(batch=4):
    return torch.randn(batch, 3, *SIZE), torch.arange(batch) % NUM_CLASSES


def wanted_masks(scores, count):
    """The `count` largest of each map `[B, h, w]`, one after the other; `[B, H, W]` over the partners of flip."""
    scores = scores.detach()
    rows, columns = scores.shape[1:]
    masks = torch.zeros(len(scores), *SIZE, dtype=torch.bool)
    for i in range(len(scores)):
        left = {(r, c): float(scores[len(scores) - 1 - i, r, c]) for r in range(rows) for c in range(columns)}
        for _ in range(count):
            r, c = max(left, key=left.get)
            del left[r, c]
            height, width = SIZE[0] // rows, SIZE[1] // columns
            masks[i, r * height : (r + 1) * height, c * width : (c + 1) * width] = True
    return masks


def assert_pasted(mixed, images, masks):
    for i in range(len(images)):
        assert mixed.images[i].equal(torch.where(masks[i], images[len(images) - 1 - i], images[i]))
        assert mixed.source_weight[i].item() == pytest.approx(masks[i].float().mean().item())


# --- Equations


def test_a_number_of_49_patches_is_a_share_of_any_grid():
    for share, patches, wanted in [
        (6 / 49, 49, 6),
        (6 / 49, 196, 24),
        (6 / 49, 64, 8),
        (0.09375, 64, 6),
        (1e-4, 49, 1),
        (0.9999, 49, 48),
        (0.5, 2, 1),
    ]:
        assert patch_counts(torch.tensor([share], dtype=torch.float64), patches).tolist() == [wanted]
    for k in range(1, 49):
        assert patch_counts(torch.tensor([k / 49]), 49).tolist() == [k]


def test_top_patches_are_each_maps_own_largest_and_the_first_on_ties():
    saliency = torch.tensor([[[1.0, 5.0, 2.0], [5.0, 0.0, 5.0]], [[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]]])
    mask = top_cells(saliency.flatten(1), torch.tensor([2, 3])).view(saliency.shape)
    assert mask.int().tolist() == [[[0, 1, 0], [1, 0, 0]], [[1, 1, 0], [0, 0, 1]]]


def test_pixels_belong_to_the_patch_that_their_centre_lies_in():
    mask = torch.rand(3, 7, 5) < 0.4
    pixels = patches_to_pixels(mask, (32, 32))
    for row in range(32):
        for column in range(32):
            patch = mask[:, int((row + 0.5) / 32 * 7), int((column + 0.5) / 32 * 5)]
            assert pixels[:, row, column].equal(patch)


def test_a_map_of_features_is_averaged_or_its_last_channel_is_taken():
    features = torch.randn(2, 3, 4, 5)
    for i in range(2):
        for row in range(4):
            for column in range(5):
                places = [float(features[i, channel, row, column]) for channel in range(3)]
                assert float(feature_saliency(features)[i, row, column]) == pytest.approx(
                    sum(places) / 3, abs=1e-6
                )
                assert float(feature_saliency(features, channels="last")[i, row, column]) == places[2]


# --- Who looks


@pytest.mark.parametrize("channels", ["mean", "last"])
@pytest.mark.parametrize("output_fmt", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_a_cnns_strongest_places_are_pasted(make_vit, channels, output_fmt, batch):
    provider = Maps(output_fmt=output_fmt)
    images, labels = make_batch(batch)
    mixed = make_task(make_vit(), provider=provider, channels=channels, top_k=10).mix(images, labels)
    features = provider.convolution(images)  # no dropout: as at inference
    scores = features.mean(dim=1) if channels == "mean" else features[:, -1]
    assert_pasted(mixed, images, wanted_masks(scores, round(10 / 49 * 24)))
    assert provider.drop.training


def test_a_cnn_by_timms_name_with_its_options(make_vit):
    options = {"pretrained": False, "output_stride": 8}
    task = make_task(make_vit(), provider="resnet10t", provider_options=options)
    provider = task.method.saliency.models[0]
    assert not any(parameter.requires_grad for parameter in provider.parameters())
    images, labels = make_batch()
    before = copy.deepcopy(provider.state_dict())
    mixed = task.mix(images, labels)
    with torch.no_grad():
        scores = copy.deepcopy(provider).eval().forward_features(images).mean(dim=1)
    assert scores.shape[1:] == (2, 3)
    assert_pasted(mixed, images, wanted_masks(scores, 1))
    assert all(torch.equal(value, before[key]) for key, value in provider.state_dict().items())


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, references.class_attention),
        ({"block": 1}, lambda model, images: references.class_attention(model, images, block=1)),
        ({"attention": "image"}, references.image_attention),
    ],
)
@pytest.mark.parametrize("own", [True, False], ids=["self", "provider"])
def test_a_transformers_most_attended_tokens_are_pasted(make_vit, options, reference, own):
    model = make_vit(drop_path_rate=0.5)
    other = make_vit(depth=2, patch_size=8)
    provider = "self" if own else other
    images, labels = make_batch()
    mixed = make_task(model, provider=provider, **options).mix(images, labels)
    looking, grid = (model, GRID) if own else (other, (2, 3))
    with torch.no_grad():
        scores = reference(copy.deepcopy(looking).eval(), images).unflatten(1, grid)
    assert_pasted(mixed, images, wanted_masks(scores, max(1, round(6 / 49 * grid[0] * grid[1]))))


def test_image_attention_is_read_where_there_is_no_class_row(make_vit):
    model = make_vit(class_token=False, global_pool="avg")
    images, labels = make_batch()
    mixed = make_task(model).mix(images, labels)
    scores = references.image_attention(copy.deepcopy(model).eval(), images).unflatten(1, GRID)
    assert_pasted(mixed, images, wanted_masks(scores, 3))


@pytest.mark.parametrize("attention", ["class-rollout", "image-rollout"])
def test_rollouts_look_elsewhere(make_vit, attention):
    images, labels = make_batch(8)
    mixed = [make_task(make_vit(), attention=each).mix(images, labels).images for each in (None, attention)]
    assert not mixed[0].equal(mixed[1])


def test_a_provider_sees_images_normalised_and_sized_as_it_wants_them(make_vit):
    model, provider = make_vit(), Maps()
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    provider.pretrained_cfg = {"mean": (0.0, 0.0, 0.0), "std": (0.25, 0.25, 0.25)}
    images, labels = make_batch()
    make_task(model, provider=provider).mix(images, labels)
    assert torch.allclose(provider.seen[-1], (images * 0.5 + 0.5) / 0.25, atol=1e-5)
    mixed = make_task(model, provider=provider, provider_size=32).mix(images, labels)
    larger = F.interpolate(images, size=(32, 48), mode="bilinear")
    assert torch.allclose(provider.seen[-1], (larger * 0.5 + 0.5) / 0.25, atol=1e-5)
    scores = provider.convolution(provider.seen[-1]).mean(dim=1)
    assert scores.shape[1:] == (8, 12)
    assert_pasted(mixed, images, wanted_masks(scores, 12))


def test_a_provider_is_shown_smaller_images_without_aliasing(make_vit):
    provider, (images, labels) = Maps(stride=2), make_batch()
    make_task(make_vit(), provider=provider, provider_size=8).mix(images, labels)
    assert provider.seen[-1].equal(F.interpolate(images, size=(8, 12), mode="bilinear", antialias=True))
    assert not torch.allclose(provider.seen[-1], F.interpolate(images, size=(8, 12), mode="bilinear"), atol=0.1)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_provider_is_tried_on_as_many_channels_as_the_model_takes(make_vit, channels):
    model, images = make_vit(in_chans=channels), torch.randn(4, channels, *SIZE)
    model.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}  # timm's stays that of 3
    for provider in (Maps(channels=channels), make_vit(in_chans=channels), "self"):
        if provider != "self":
            provider.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
        assert make_task(model, provider=provider)(images, torch.arange(4))["loss"].isfinite()
    for provider in (Maps(), make_vit()):
        message = f"takes images of 3 channels, but the model under training {channels}: give one .*in_chans"
        with pytest.raises(ValueError, match=message) as refused:
            make_task(model, provider=provider)
        assert "pixels" not in str(refused.value)


def test_a_drawn_number_of_patches_follows_alpha_and_mode(make_vit):
    images, labels = make_batch(8)
    task = make_task(make_vit(), top_k=None, mode="elem")
    counts = torch.cat([task.mix(images, labels).source_weight * 24 for _ in range(40)])
    assert counts.round().allclose(counts, atol=1e-5)
    assert counts.min() == 1
    assert counts.max() == 23
    assert counts.mean().item() == pytest.approx(12, abs=1.5)
    narrow = make_task(make_vit(), top_k=None, mode="elem", cutmix_alpha=50.0)
    spread = torch.cat([narrow.mix(images, labels).source_weight * 24 for _ in range(10)]).std()
    assert spread < counts.std() / 2
    assert len(make_task(make_vit(), top_k=None).mix(images, labels).source_weight.unique()) == 1


@pytest.mark.parametrize("top_k", [1, 12, 0.5])
def test_top_k_is_the_pasted_share(make_vit, top_k):
    weight = make_task(make_vit(), top_k=top_k).mix(*make_batch()).source_weight
    wanted = max(1, round((top_k if top_k < 1 else top_k / 49) * 24)) / 24
    assert torch.allclose(weight, torch.full((4,), wanted))


# --- What it leaves alone


def test_the_default_provider_is_made_when_it_is_bound_and_no_sooner(make_vit, monkeypatch):
    made = []

    def create(name, **options):
        made.append((name, options))
        raise OSError("no network")

    monkeypatch.setattr(timm, "create_model", create)
    method = attnmix.create_method("attentivemix", num_classes=NUM_CLASSES)
    assert not made
    with pytest.raises(ValueError, match="provider 'resnet50' .*no network.*Give provider=\"self\""):
        attnmix.MixTask(make_vit(), method)
    assert made == [("resnet50", {"pretrained": True})]


def test_a_provider_is_neither_trained_nor_saved(make_vit):
    model, other = make_vit(), make_vit(drop_path_rate=0.3).train()
    task = make_task(model, provider=other)
    task(*make_batch())["loss"].backward()
    assert all(parameter.grad is None for parameter in other.parameters())
    assert set(task.state_dict()) == {f"trainable_module.model.{key}" for key in model.state_dict()}
    assert other.training


def test_the_model_under_training_looks_as_at_inference_and_is_given_back(make_vit):
    model = make_vit(drop_path_rate=0.5).train()
    model.blocks[0].eval()
    task = make_task(model)
    images, labels = make_batch()
    flags = [module.training for module in model.modules()]
    first = task.mix(images, labels).images
    assert all(task.mix(images, labels).images.equal(first) for _ in range(3))
    assert [module.training for module in model.modules()] == flags
    model.blocks[-1].attn.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        task.mix(images, labels)
    assert [module.training for module in model.modules()] == flags


def test_a_provider_is_given_back_after_an_error(make_vit):
    provider = Maps().train()
    task = make_task(make_vit(), provider=provider)
    provider.drop.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        task.mix(*make_batch())
    assert provider.drop.training


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_of_another_type_and_autocast(make_vit, dtype):
    images, labels = make_batch()
    for provider in ("self", Maps()):
        model = make_vit().to(dtype)
        task = make_task(model, provider=provider)
        task(images.to(dtype), labels)["loss"].backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = make_task(make_vit(), provider=Maps())(images, labels)
    out["loss"].backward()
    assert out["loss"].isfinite()


def test_nothing_waits_for_a_device(make_vit):
    # a tensor without content, of which nothing can be fetched
    images, labels = torch.empty(4, 3, *SIZE, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    for options in ({}, {"provider": Maps()}, {"provider": make_vit(), "top_k": None}):
        task = make_task(make_vit().to("meta"), **options)
        assert task.mix(images, labels).images.shape == images.shape


# --- What it refuses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k is 0, but must be a whole number of 49 patches, 1 to 48, or a share"),
        ({"top_k": 49}, "top_k is 49"),
        ({"top_k": 1.0}, r"top_k is 1\.0"),
        ({"top_k": -0.1}, r"top_k is -0\.1"),
        ({"top_k": True}, "top_k is True, but must be a whole number of 49 patches"),
        ({"block": 1.5}, "block is 1.5, but must be a whole number"),
        ({"provider_size": True, "provider": "resnet18"}, "provider_size is True, but must be a number of pixels"),
        ({"attention": "random"}, 'attention is "random", but must be one of class, image, class-rollout'),
        ({"channels": "max"}, 'channels is "max", but must be one of mean, last'),
        (
            {"provider": "self", "provider_options": {"depth": 2}},
            "provider_options .* need a provider given by name",
        ),
        (
            {"provider": Maps(), "provider_options": {"depth": 2}},
            "provider_options .* need a provider given by name",
        ),
        ({"provider": "self", "provider_size": 64}, 'provider_size is 64, but provider="self" sees the images'),
        ({"provider_size": 0}, "provider_size is 0, but must be a number of pixels"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("attentivemix", num_classes=3, **options)


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward_features(self, images):
        return self.linear(images.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": "resnet5000"}, "provider 'resnet5000' is neither the folder of a run nor a model that timm"),
        ({"provider": "./nowhere"}, "provider './nowhere' holds no exported model"),
        ({"provider": nn.Linear(2, 2)}, "the provider Linear gives no map of features: use a timm CNN"),
        ({"provider": Sequences()}, "the provider Sequences gives no map of features, and its attention"),
        (
            {"provider": Maps(stride=16)},
            "Maps has a single patch for images of 16 x 24 pixels: .*provider_size=224",
        ),
        (
            {"provider": Maps(stride=32)},
            "the provider Maps does not take images of 16 x 24 pixels .*provider_size",
        ),
        (
            {"provider": Maps(), "attention": "image"},
            "attention is 'image', but the provider Maps is no transformer",
        ),
        ({"provider": Maps(), "block": 1}, "block is 1, but the provider Maps is no transformer"),
        ({"channels": "last"}, 'channels="last" is of a CNN\'s map, but VisionTransformer is a transformer'),
        ({"block": 3}, "block 3 is none of the 3"),
    ],
)
def test_what_does_not_fit_is_said_when_the_task_is_made(make_vit, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(make_vit(), **options)


def test_a_transformer_of_another_size_is_refused_unless_it_is_shown_its_own(make_vit):
    other = make_vit(img_size=(32, 48), patch_size=8)
    with pytest.raises(ValueError, match="provider VisionTransformer does not take images of 16 x 24 pixels"):
        make_task(make_vit(), provider=other)
    images, labels = make_batch()
    mixed = make_task(make_vit(), provider=other, provider_size=32).mix(images, labels)
    larger = F.interpolate(images, size=(32, 48), mode="bilinear")
    scores = references.class_attention(other.eval(), larger).unflatten(1, (4, 6))
    assert_pasted(mixed, images, wanted_masks(scores, 3))


def test_class_attention_needs_a_class_row(make_vit):
    averaged = make_vit(class_token=False, global_pool="avg")
    for model, provider in ((averaged, "self"), (make_vit(), averaged)):
        with pytest.raises(ValueError, match='no class token .* AttentiveMix could read; use attention="image"'):
            make_task(model, provider=provider, attention="class")


# --- Together with others


@pytest.mark.parametrize("label", ["transmix", "tl-align"])
def test_other_labels_go_with_it(make_vit, label):
    images, labels = make_batch()
    plain, out = make_task(make_vit())(images, labels), make_task(make_vit(), label=label)(images, labels)
    assert out["mixed"].images.equal(plain["mixed"].images)
    assert not torch.allclose(out["mixed"].source_weight, plain["mixed"].source_weight)
    out["loss"].backward()


@pytest.mark.parametrize(
    ("name", "options"),
    [("attentivemix+cutmix", {}), ("tokenmixup", {"base": "attentivemix", "horizontal": 1, "vertical": 2})],
)
@pytest.mark.parametrize("own", [True, False], ids=["self", "CNN"])
def test_it_is_one_of_several_and_a_base(make_vit, name, options, own):
    provider = "self" if own else Maps()
    method = attnmix.create_method(name, num_classes=NUM_CLASSES, mixup_prob=0.0, provider=provider, **options)
    task = attnmix.MixTask(make_vit(), method)
    for _ in range(4):
        out = task(*make_batch())
        assert out["loss"].isfinite()
        out["loss"].backward()
