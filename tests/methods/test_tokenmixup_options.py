"""TokenMixup's options, each with its effect, and its errors, each by its message."""

import pytest
import timm
import torch

import attnmix
from attnmix.methods import method_options
from attnmix.methods.choice import Choice
from attnmix.methods.tokenmixup import TokenMixup, salient_tokens
from tests.conftest import NUM_CLASSES
from tests.methods.tokenmixup_tasks import (
    MODELS,
    make_batch,
    make_cait,
    make_pvt,
    make_swin,
    make_task,
    spy_on_swaps,
)

# ---- options ----


@pytest.mark.parametrize(
    "options",
    [
        {"horizontal": 2},
        {"horizontal": -1},
        {"horizontal": None},
        {"vertical": 1},
        {"vertical": None},
        {"base": "mixup"},
        {"tau": 0.15},
        {"difficulty_scale": 1.0, "tau": 1.6},
        {"rho": 0.03},
        {"kappa": 5},
        {"score_pool": "mean"},
        {"score_pool": "attention"},
        {"score_weight": 0.5},
        {"samples": "random"},
        {"tokens": "random"},
    ],
    ids=str,
)
def test_every_option_changes_the_result(make_vit, options):
    images, labels = make_batch(6)
    default, other = make_task(make_vit())(images, labels), make_task(make_vit(), **options)(images, labels)
    assert not torch.allclose(default["loss"], other["loss"], atol=1e-5)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"samples": "random"}, {"samples": "random", "random_samples": 3}),
        ({"score_at": "final"}, {"samples": "random", "random_samples": 0}),
    ],
    ids=str,
)
def test_where_there_is_no_score_loss_the_options_still_tell(make_vit, one, two):
    images, labels = make_batch(6)
    losses = [make_task(make_vit(), **options)(images, labels)["loss"] for options in (one, two)]
    assert not torch.allclose(*losses, atol=1e-5)


def test_a_base_of_several_smooths_as_the_drawn_one_does(make_vit):
    members = [
        attnmix.create_method(n, num_classes=NUM_CLASSES, smoothing=s) for n, s in (("mixup", 0.5), ("none", 0))
    ]
    method = TokenMixup(num_classes=NUM_CLASSES, base=Choice(members, [0, 1]), tau=0.0)
    out = attnmix.MixTask(make_vit(), method)(*make_batch(4))
    assert out["target"].min() == 0


@pytest.mark.parametrize(
    ("base", "own"),
    [("cutmix", [0.1]), ("none", [0.1]), ("smmix", [0.1]), ("relabel", [0.0]), ("cutmix+relabel", [0.1, 0.0])],
)
def test_smoothing_is_the_bases_own_unless_given(base, own):
    assert method_options("tokenmixup", {"base": base})["smoothing"].default is None
    for given, wanted in (
        ({}, own),
        ({"smoothing": 0.3}, [0.3] * len(own)),
        ({"smoothing": 0.0}, [0.0] * len(own)),
    ):
        method = TokenMixup(num_classes=3, base=base, **given)
        assert [member.smoothing for member in getattr(method.base, "methods", [method.base])] == wanted
        assert method.smoothing == method.base.smoothing == wanted[0]


def test_salient_tokens_are_the_highest():
    places = salient_tokens(torch.tensor([[0.1, 0.5, 0.2, 0.4], [0.9, 0.1, 0.2, 0.3]]), 2)
    assert [sorted(row) for row in places.tolist()] == [[1, 3], [0, 3]]


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_score_stop_gradient_keeps_the_score_from_the_model(make_vit, options):
    for stop in (True, False):
        task = make_task(make_vit(**options), score_stop_gradient=stop)
        task(*make_batch(4))["losses"]["score"].backward()
        reached = task.view.model.patch_embed.proj.weight.grad is not None
        assert reached is not stop
        assert all(p.grad is not None for p in task.method.score_net.parameters())


def test_random_samples_is_a_chance_or_a_number(make_vit):
    model, (images, labels) = make_vit(), make_batch(8)

    def shares(steps, **options):
        task = make_task(model, samples="random", rho=0.0, vertical=None, **options)
        assert task.method.score_net is None
        return torch.stack([task(images, labels)["stats"]["mixed_samples"] * 8 for _ in range(steps)])

    # one in eight is at times matched with itself
    assert (shares(10, random_samples=3) <= 3).all()
    assert shares(10, random_samples=3).mean() > 2
    assert shares(20, random_samples=0.25).mean() == pytest.approx(2, abs=0.8)
    assert shares(3, random_samples=0).max() == 0
    assert shares(3, random_samples=100).max() == 8


def test_random_tokens_in_vtm_are_drawn_anew_every_step(make_vit):
    task = make_task(make_vit(), horizontal=None, tokens="random")
    images, labels = make_batch(3)
    first, second = task(images, labels)["output"], task(images, labels)["output"]
    assert not torch.allclose(first, second, atol=1e-4)


def test_stats_count_what_was_done(make_vit, monkeypatch):
    swaps = spy_on_swaps(monkeypatch)
    out = make_task(make_vit(), tau=0.17)(*make_batch(6))
    mask = swaps[0].mask
    mixed = mask.any(dim=1)
    stats = out["stats"]
    assert stats["mixed_samples"] == mixed.float().mean()
    assert stats["mixed_tokens"].item() == pytest.approx(mask.sum().item() / mixed.sum().item())
    assert stats["memory_tokens"] == 6
    assert stats["saliency_gain"] > 0
    assert all(v.ndim == 0 and v.dtype == torch.float32 and not v.requires_grad for v in stats.values())
    nothing = make_task(make_vit(), tau=0.0)(*make_batch(6))["stats"]
    assert nothing["mixed_samples"] == nothing["mixed_tokens"] == nothing["saliency_gain"] == 0


# ---- errors ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizontal": None, "vertical": None}, "horizontal and vertical are both None"),
        ({"smoothing": 1.0}, "smoothing is 1.0, but must be in"),
        ({"tau": -0.1}, "tau is -0.1, but must be at least 0"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"rho": -1.0}, "rho is -1.0"),
        ({"score_weight": -1.0}, "score_weight is -1.0"),
        ({"difficulty_scale": 0.0}, "difficulty_scale is 0.0, but must be above 0"),
        ({"kappa": 0}, "kappa is 0, but must be a whole number of tokens"),
        ({"kappa": 2.5}, "kappa is 2.5"),
        ({"horizontal": 1.5}, "horizontal is 1.5, but must be the number of a block, or None"),
        ({"vertical": "last"}, "vertical is 'last'"),
        ({"random_samples": -1}, "random_samples is -1"),
        ({"random_samples": float("nan")}, "random_samples is nan"),
        ({"random_samples": 2.5}, "random_samples is 2.5, but must be a chance below 1, or a whole number"),
        ({"score_pool": "max"}, 'score_pool is "max", but must be one of auto, class, attention, mean'),
        ({"score_at": "end"}, 'score_at is "end", but must be one of block, final'),
        ({"samples": "hard"}, 'samples is "hard", but must be one of easy, random'),
        ({"tokens": "all"}, 'tokens is "all", but must be one of salient, random'),
        ({"base": "cutmax"}, 'no method "cutmax"; did you mean "cutmix"'),
        ({"base": "mixup", "cutmix_alpha": 1.0}, 'mixup has no option "cutmix_alpha"'),
        ({"base": TokenMixup(num_classes=3)}, "base contains TokenMixup, which has a training step of its own"),
        ({"base": Choice([TokenMixup(num_classes=3)])}, "base contains TokenMixup"),
        ({"base": attnmix.create_method("cutmix", num_classes=4)}, "base has 4 classes, TokenMixup 3"),
        ({"base": None}, "base is None, but must be a method's name"),
        ({"base": "cutmx"}, 'base: no method "cutmx"; did you mean "cutmix"'),
        (
            {"base": attnmix.create_method("cutmix", num_classes=3), "prob": 0.5},
            "base is a method already: its options .'prob'. belong",
        ),
    ],
    ids=str,
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TokenMixup(num_classes=3, **options)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({}, {"horizontal": 3}, "horizontal is 3, but VisionTransformer has 3 blocks, -3 to 2"),
        ({}, {"vertical": -4}, "vertical is -4, but VisionTransformer has 3 blocks"),
        ({}, {"vertical": 0}, "vertical is 0, but the first block has no earlier block"),
        ({}, {"vertical": -3}, "vertical is -3, but the first block"),
        (
            {"class_token": False, "global_pool": "avg"},
            {"score_pool": "class"},
            'score_pool is "class", but block 1 of VisionTransformer has no class token; use "attention"',
        ),
        ({"patch_drop_rate": 0.5}, {}, "drops 50% of its patches"),
        ({"class_token": False, "global_pool": "avg"}, {"base": "transmix"}, "classifies by no class token"),
    ],
    ids=str,
)
def test_a_model_that_does_not_fit_is_refused(make_vit, model, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(make_vit(**model), **options)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            make_swin,
            {"vertical": 1},
            "vertical=1 does not work on SwinTransformer: its relative position bias.*alone",
        ),
        (
            make_pvt,
            {"vertical": 3},
            "vertical=3 does not work on PyramidVisionTransformerV2: its keys are laid out",
        ),
        (make_cait, {"vertical": -1}, "vertical=-1 does not work on Cait: its heads talk.*vertical=None"),
        (
            lambda: timm.create_model("xcit_nano_12_p16_224", num_classes=NUM_CLASSES, img_size=64, depth=2),
            {"horizontal": 1, "vertical": None},
            "horizontal is 1, but that block of Xcit mixes channels",
        ),
    ],
)
def test_a_family_that_does_not_fit_is_refused_with_a_way_out(make, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(make(), **options)


def test_more_memory_than_tokens_is_an_error(make_vit):
    with pytest.raises(ValueError, match="kappa is 25, but block 0 of VisionTransformer has 24 image tokens"):
        make_task(make_vit(), kappa=25)(*make_batch(2))


def test_gradient_checkpointing_is_refused(make_vit):
    model = make_vit()
    task = make_task(model)
    model.set_grad_checkpointing()
    with pytest.raises(ValueError, match="checkpoints gradients.*switch gradient checkpointing off"):
        task(*make_batch(2))
    with pytest.raises(ValueError, match="checkpoints gradients"):
        make_task(model)
