from collections import Counter

import numpy as np
import pytest
import torch

import attnmix
from attnmix.backbone import BackboneView
from attnmix.methods.choice import Choice
from attnmix.methods.manifold_mixup import HiddenBlend, ManifoldMixup, blend_states, paper_layers
from tests import references
from tests.backbone import families
from tests.conftest import NUM_CLASSES


def make_task(model, **options):
    return attnmix.MixTask(model, ManifoldMixup(num_classes=NUM_CLASSES, **options))


def make_batch(batch=4, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def slow_logits(model, images, layer, partners, weights):
    """Sample by sample, and block by block: the states of two images are summed after `layer` blocks."""

    def states(image):
        tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(image[None]))))
        for block in model.blocks[:layer]:
            tokens = block(tokens)
        return tokens

    rows = []
    for i, (partner, weight) in enumerate(zip(partners, weights, strict=True)):
        if layer == 0:
            image = (1 - weight) * images[i] + weight * images[partner]
            tokens = states(image)
        else:
            tokens = (1 - weight) * states(images[i]) + weight * states(images[partner])
        for block in model.blocks[layer:]:
            tokens = block(tokens)
        rows.append(model.forward_head(model.norm(tokens))[0])
    return torch.stack(rows)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}])
@pytest.mark.parametrize(("batch", "mode"), [(1, "batch"), (5, "elem")])
def test_a_step_equals_the_slow_reference(make_vit, layer, options, batch, mode):
    model = make_vit(**options)
    images, labels = make_batch(batch)
    out = make_task(model, layers=[layer], mode=mode, smoothing=0.0)(images, labels)
    partners, weights = out["mixed"].source_index.tolist(), out["mixed"].source_weight.tolist()
    wanted = slow_logits(model, images, layer, partners, weights)
    assert torch.allclose(out["output"], wanted, atol=1e-5)
    target = torch.zeros(batch, NUM_CLASSES)
    for i, (partner, weight) in enumerate(zip(partners, weights, strict=True)):
        target[i, labels[i]] += 1 - weight
        target[i, labels[partner]] += weight
    assert torch.allclose(out["target"], target, atol=1e-6)
    loss = torch.stack([references.cross_entropy(wanted[i], target[i]) for i in range(batch)]).mean()
    references.assert_same_gradients(out["loss"], loss, model)


def test_layer_0_alone_is_mixup(make_vit):
    model = make_vit()
    images, labels = make_batch()
    mixup = attnmix.MixTask(model, attnmix.create_method("mixup", num_classes=NUM_CLASSES, mixup_alpha=2.0))
    ours = make_task(model, layers=[0])
    for _ in range(5):
        one, two = ours(images, labels), mixup(images, labels)
        assert one["mixed"].images.equal(two["mixed"].images)
        assert one["loss"].equal(two["loss"])


def test_hidden_steps_show_the_images_as_they_went_in(make_vit):
    task = make_task(make_vit(), layers=[1])
    images, labels = make_batch()
    mixed = task(images, labels)["mixed"]
    assert mixed.images is images
    assert mixed.draw.kind == "hidden"
    assert mixed.source_mask is None
    assert mixed.source_map is None
    assert mixed.source_weight.min() > 0
    masks = torch.rand(4, 1, 16, 24)
    assert mixed.draw.apply(masks).images is masks
    assert mixed.draw.apply(masks).source_weight.equal(mixed.source_weight)


def test_the_middle_of_an_odd_batch_keeps_its_tokens_and_its_label(make_vit):
    model = make_vit().eval()
    images, labels = make_batch(3)
    out = make_task(model, layers=[2], smoothing=0.0)(images, labels)
    assert torch.allclose(out["output"][1], model(images)[1], atol=1e-6)
    assert out["target"][1].equal(torch.eye(NUM_CLASSES)[1])
    states = torch.randn(3, 7, 2)
    assert blend_states(states, torch.tensor([2, 1, 0]), torch.tensor([0.3, 0.3, 0.9]))[1].equal(states[1])


def test_eligible_layers_are_drawn_equally_often(make_vit):
    task = make_task(make_vit(), layers=[0, 2])
    images, labels = make_batch(2)
    drawn = Counter(getattr(task.mix(images, labels).draw, "layer", 0) for _ in range(400))
    assert set(drawn) == {0, 2}
    assert drawn[2] / 400 == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(
    ("blocks", "layers"), [(1, (0,)), (2, (0, 1)), (3, (0, 1)), (4, (0, 1, 2)), (12, (0, 3, 6)), (24, (0, 6, 12))]
)
def test_the_papers_layers_lie_at_a_quarter_and_half_of_the_depth(make_vit, blocks, layers):
    assert paper_layers(blocks) == layers
    assert make_task(make_vit(depth=blocks)).method.layers == layers


@pytest.mark.parametrize("options", [{"layers": [1]}, {"layers": [2]}, {"layers": [0]}, {"mixup_alpha": 0.2}])
def test_every_option_changes_the_loss(make_vit, options):
    model = make_vit()
    images, labels = make_batch()
    losses = [
        torch.stack([task(images, labels)["loss"] for _ in range(4)])
        for task in (make_task(model, layers=[0, 1, 2], seed=1), make_task(model, seed=1, **options))
    ]
    assert not torch.allclose(*losses)


def test_weights_gather_around_a_half_by_the_papers_alpha(make_vit):
    task = make_task(make_vit(), mode="elem")
    weights = torch.cat([task.mix(*make_batch(50)).source_weight for _ in range(10)])
    assert weights.var().item() == pytest.approx(1 / (4 * (2 * 2 + 1)), rel=0.2)  # Beta(2, 2)


@pytest.mark.parametrize("family", ["siglip", "deit_distilled", "eva02", "cait", "xcit", "pvt", "swin", "hf_swin"])
def test_families_mix_what_goes_into_a_block(family):
    model = families.build(family)
    count = len(BackboneView(model).blocks)
    task = attnmix.MixTask(model, ManifoldMixup(num_classes=3, layers=[count - 1], smoothing=0.0))
    images, labels = torch.randn(4, 3, *families.FAMILIES[family].size), torch.tensor([0, 1, 2, 0])
    out = task(images, labels)
    assert not torch.allclose(out["output"], task.view(images), atol=1e-5)
    out["loss"].backward()
    same = images[:1].expand(4, -1, -1, -1)
    assert torch.allclose(task(same, labels)["output"], task.view(same), atol=1e-5)


@pytest.mark.slow
def test_a_compiled_model_mixes_its_tokens_too(make_vit):
    images, labels = make_batch()
    eager, compiled = make_task(make_vit(), layers=[2]), make_task(make_vit(), layers=[2])
    compiled.compile(backend="aot_eager")
    for _ in range(2):
        assert torch.allclose(compiled(images, labels)["loss"], eager(images, labels)["loss"], atol=1e-5)


def test_hooks_nest_with_tokenmixups(make_vit):
    base = ManifoldMixup(num_classes=NUM_CLASSES, layers=[1], smoothing=0.0)
    options = {"horizontal": 2, "vertical": None, "tau": float("inf"), "rho": 0.0}
    model = make_vit()
    task = attnmix.MixTask(
        model, attnmix.create_method("tokenmixup", num_classes=NUM_CLASSES, base=base, **options)
    )
    images, labels = make_batch()
    out = task(images, labels)
    assert isinstance(out["mixed"].draw, HiddenBlend)
    assert out["stats"]["mixed_samples"] > 0
    assert torch.allclose(out["target"].sum(dim=1), torch.ones(4))
    out["loss"].backward()
    assert not any(block._forward_pre_hooks for block in model.blocks)


def test_it_is_drawn_in_turns_with_others(make_vit):
    method = attnmix.create_method("manifold-mixup+cutmix", num_classes=NUM_CLASSES, layers=[1])
    assert isinstance(method, Choice)
    assert method.shares == {"keep": 0.0, "blend": 0.5, "paste": 0.5}
    task = attnmix.MixTask(make_vit(), method)
    draws = {type(task(*make_batch())["mixed"].draw).__name__ for _ in range(12)}
    assert draws == {"HiddenBlend", "Paste"}


def test_shares_follow_prob():
    shares = ManifoldMixup(num_classes=3, prob=0.25).shares
    assert shares == {"keep": 0.75, "blend": 0.25, "paste": 0.0}


def test_gradient_checkpointing_is_refused_where_tokens_are_mixed(make_vit):
    saving = make_vit()
    saving.set_grad_checkpointing(True)
    with pytest.raises(ValueError, match="checkpoints gradients.*switch gradient checkpointing off"):
        make_task(saving)
    make_task(saving, layers=[0])(*make_batch())["loss"].backward()
    model = make_vit()
    task = make_task(model, layers=[1])
    model.set_grad_checkpointing(True)  # later on
    with pytest.raises(ValueError, match="checkpoints gradients"):
        task(*make_batch())


def test_a_block_whose_hook_does_not_run_is_named(make_vit, monkeypatch):
    model = make_vit()
    task = make_task(model, layers=[1])
    block = model.blocks[1]
    # what a block compiled by itself may do
    monkeypatch.setattr(block, "_compiled_call_impl", block.forward, raising=False)
    with pytest.raises(ValueError, match="block 1 of VisionTransformer ran without its tokens being mixed"):
        task(*make_batch())


def test_a_model_that_drops_patches_is_refused(make_vit):
    with pytest.raises(ValueError, match="drops 50% of its patches"):
        make_task(make_vit(patch_drop_rate=0.5))


def test_a_layer_that_is_not_there_is_named(make_vit):
    with pytest.raises(
        ValueError, match=r"layers has 3, but VisionTransformer has 3 blocks: 0 is the image, 1 to 2"
    ):
        make_task(make_vit(), layers=[0, 3])


def test_layers_may_be_counted_by_numpy(make_vit):
    method = make_task(make_vit(), layers=np.arange(1, 3)).method
    assert method.layers == (1, 2)


@pytest.mark.parametrize("layers", [[], [-1], [0, 0], [1.5], "12", 2, [True]])
def test_wrong_layers_are_named(layers):
    with pytest.raises(ValueError, match="layers is .*, but must be a list of different layers"):
        ManifoldMixup(num_classes=3, layers=layers)


def test_alpha_is_checked():
    with pytest.raises(ValueError, match="mixup_alpha is 0"):
        ManifoldMixup(num_classes=3, mixup_alpha=0)
