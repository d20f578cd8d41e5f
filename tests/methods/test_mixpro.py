import math

import pytest
import torch

import attnmix
from attnmix.methods.mixpro import ProgressiveLabel, progressive_factor, progressive_weight
from tests import references
from tests.conftest import NUM_CLASSES
from tests.methods.test_transmix import NO_CLASS_TOKEN


def make_task(model, name="mixpro", **options):
    options = {"mixup_prob": 0.0, **options}
    return attnmix.MixTask(model, attnmix.create_method(name, num_classes=NUM_CLASSES, **options))


def make_batch(batch=4, size=(16, 24)):
    return torch.randn(batch, 3, *size), torch.arange(batch) % NUM_CLASSES


def slow_target(model, mixed, labels, *, of_images=False, smoothing=0.1):
    """Algorithm 1, sample by sample: area, attention, the prediction's cosine with the label by area."""
    read = references.image_attention if of_images else references.class_attention
    attention = read(model, mixed.images)
    with torch.no_grad():
        probabilities = model(mixed.images).softmax(dim=1).tolist()
    patch, columns = 4, mixed.images.shape[-1] // 4
    rows = []
    for i, label in enumerate(labels):
        mask = mixed.source_mask[i].tolist()
        area = sum(sum(line) for line in mask) / (len(mask) * len(mask[0]))
        on_source = total = 0.0
        for n, score in enumerate(attention[i].tolist()):
            total += score
            on_source += score * mask[n // columns * patch][n % columns * patch]
        target = references.smooth(label, NUM_CLASSES, smoothing)
        source = references.smooth(labels[mixed.source_index[i]], NUM_CLASSES, smoothing)
        by_area = (area * source + (1 - area) * target).tolist()
        dot = sum(p * y for p, y in zip(probabilities[i], by_area, strict=True))
        cosine = dot / math.sqrt(sum(p * p for p in probabilities[i]) * sum(y * y for y in by_area))  # eq. 8
        weight = cosine * on_source / total + (1 - cosine) * area  # eq. 9
        rows.append(weight * source + (1 - weight) * target)
    return torch.stack(rows)


@pytest.mark.parametrize("batch", [1, 3, 6])
@pytest.mark.parametrize("options", [{}, NO_CLASS_TOKEN], ids=["class", "image"])
def test_targets_and_gradients_equal_the_slow_reference(make_vit, batch, options):
    model = make_vit(**options).eval()
    of_images = options is NO_CLASS_TOKEN
    task = make_task(model, attention="image" if of_images else "class", mode="elem")
    images, labels = make_batch(batch)
    for _ in range(3):
        out = task(images, labels)
        wanted = slow_target(model, out["mixed"], labels.tolist(), of_images=of_images)
        assert torch.allclose(out["target"], wanted, atol=1e-5)
    logits = model(out["mixed"].images)
    loss = torch.stack([references.cross_entropy(logits[i], wanted[i]) for i in range(batch)]).mean()
    references.assert_same_gradients(out["loss"], loss, model)


def test_the_surer_the_prediction_the_more_attention_counts():
    targets = torch.tensor([[0.7, 0.3, 0.0]] * 3)
    logits = torch.stack(
        [targets[0].clamp_min(1e-9).log(), torch.tensor([0.0, 0, 0]), torch.tensor([-50.0, -50, 0])]
    )
    factor = progressive_factor(logits, targets)
    assert torch.allclose(factor, torch.tensor([1.0, 0.7580, 0.0]), atol=1e-3)
    weight = progressive_weight(torch.full((3,), 0.9), torch.full((3,), 0.3), factor)
    assert torch.allclose(weight, 0.3 + 0.6 * factor)


def test_nothing_of_the_label_has_a_gradient(make_vit):
    out = make_task(make_vit())(*make_batch())
    assert not out["target"].requires_grad
    logits = torch.randn(2, 3, requires_grad=True)
    assert not progressive_factor(logits, torch.eye(3)[:2]).requires_grad


def test_uniform_attention_gives_the_label_by_area(make_vit):
    model = make_vit()
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)
    images, labels = make_batch()
    ours, area = make_task(model), make_task(model, label="area")
    for _ in range(4):
        assert torch.allclose(ours(images, labels)["target"], area(images, labels)["target"], atol=1e-5)


@pytest.mark.parametrize("mask_patch", [4, 8, 12])
def test_every_cell_is_of_one_image_at_places_of_each_images_own(make_vit, mask_patch):
    task = make_task(make_vit(), mask_patch=mask_patch)
    images, labels = make_batch(6)
    seen = set()
    for _ in range(12):
        masks = task.mix(images, labels).source_mask
        for top in range(0, 16, mask_patch):
            for left in range(0, 24, mask_patch):
                cell = masks[:, top : top + mask_patch, left : left + mask_patch].flatten(1)
                assert cell.all(dim=1).equal(cell.any(dim=1))
        seen |= {len(masks.flatten(1).unique(dim=0)) > 1}
        cells = masks[:, ::mask_patch, ::mask_patch].flatten(1).sum(dim=1)
        assert len(cells.unique()) == 1  # one share for the batch
    assert True in seen


def test_the_source_has_its_share_in_whole_cells(make_vit):
    task, plain = make_task(make_vit(), mask_patch=4, seed=3), make_task(make_vit(), "cutmix", seed=3)
    for _ in range(5):
        mixed = task.mix(*make_batch())
        plain.method.sampler.kind(plain.method.generator)
        share = float(plain.method.sampler.pasted_share(4, plain.method.generator)[0])
        assert mixed.source_weight.tolist() == pytest.approx([math.floor(share * 24) / 24] * 4)
        plain.method.generator.set_state(task.method.generator.get_state())


def test_cells_are_a_quarter_of_the_longer_side_by_default(make_vit):
    task = make_task(make_vit(img_size=(32, 64)))
    images, labels = make_batch(4, (32, 64))
    masks = torch.cat([task.mix(images, labels).source_mask for _ in range(40)])
    changes = (masks[:, :, 1:] != masks[:, :, :-1]).any(dim=0).any(dim=0).nonzero()[:, 0] + 1
    assert changes.tolist() == [16, 32, 48]


@pytest.mark.parametrize(
    "options",
    [
        {"mask_patch": 4},
        {"label": "attention"},
        {"label": "area"},
        {"label": "transmix"},
        {"label": "tl-align"},
        {"attention": "image"},
        {"block": 0},
        {"cutmix_alpha": 0.2},
        {"mode": "elem"},
    ],
)
def test_every_option_changes_the_weights(make_vit, options):
    model, (images, labels) = make_vit(), make_batch()
    weights = [
        torch.stack([task(images, labels)["mixed"].source_weight for _ in range(4)])
        for task in (make_task(model), make_task(model, **options))
    ]
    assert not torch.allclose(*weights, atol=1e-4)


def test_attention_alone_is_transmix_of_share_one_on_these_images(make_vit):
    model = make_vit().eval()
    out = make_task(model, label="attention")(*make_batch())
    attention = references.class_attention(model, out["mixed"].images)
    on_source = (attention * out["mixed"].source_mask[:, ::4, ::4].flatten(1)).sum(dim=1)
    assert torch.allclose(out["mixed"].source_weight, on_source, atol=1e-6)


def test_a_provider_looks_instead(make_vit):
    model, provider = make_vit().eval(), make_vit(depth=2).eval()
    out = make_task(model, label="attention", provider=provider)(*make_batch())
    attention = references.class_attention(provider, out["mixed"].images)
    on_source = (attention * out["mixed"].source_mask[:, ::4, ::4].flatten(1)).sum(dim=1)
    assert torch.allclose(out["mixed"].source_weight, on_source, atol=1e-6)


def test_a_choice_with_cutmix_works_and_so_does_tokenmixup_on_top(make_vit):
    images, labels = make_batch()
    both = make_task(make_vit(), "mixpro+cutmix")
    assert len({round(both(images, labels)["loss"].item(), 4) for _ in range(6)}) > 1
    # no token leads by so much: labels are the base's own
    over = make_task(make_vit().train(), "tokenmixup", base="mixpro", horizontal=1, vertical=None, rho=1.0)
    out = over(images, labels)
    assert out["loss"].isfinite()
    wanted = slow_target(over.view.model, out["mixed"], labels.tolist())
    assert torch.allclose(out["target"], wanted, atol=1e-5)


def test_the_policy_takes_forwards_that_give_tokens_too(make_vit):
    task = make_task(make_vit().eval())
    images, labels = make_batch()
    plan = task.method.plan(task.view, images, labels)
    policy = ProgressiveLabel(task.method.label.guide, plan.guide)
    (logits, tokens), mixed = policy(task.view, plan.mixed, task.view.forward_tokens, task.method.generator)
    assert tokens.shape == (4, 24, 24)
    alone = policy(task.view, plan.mixed, task.view, task.method.generator)
    assert torch.allclose(logits, alone[0], atol=1e-5)
    assert torch.allclose(mixed.source_weight, alone[1].source_weight, atol=1e-6)


def test_mixup_is_drawn_half_of_the_time(make_vit):
    method = attnmix.create_method("mixpro", num_classes=NUM_CLASSES)
    assert method.shares == {"keep": 0.0, "blend": 0.5, "paste": 0.5}
    task = make_task(make_vit(), mixup_prob=1.0)
    mixed = task(*make_batch())["mixed"]
    assert mixed.source_mask is None
    assert len(mixed.source_weight.unique()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "pal"}, 'label is "pal", but must be one of progressive, attention, area'),
        ({"mask_patch": 0}, "mask_patch is 0, but must be a whole number"),
        ({"mask_patch": 6.5}, "mask_patch is 6.5"),
        ({"attention": "head"}, 'attention is "head"'),
        ({"label": "area", "provider": torch.nn.Identity()}, 'label="area" asks no provider'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("mixpro", num_classes=3, **options)


def test_models_and_images_that_do_not_fit_are_refused(make_vit):
    with pytest.raises(ValueError, match="mask_patch is 6, but must be a multiple of .* patches of 4 x 4"):
        make_task(make_vit(), mask_patch=6)
    with pytest.raises(ValueError, match="covers images of 16 x 24: nothing would be mixed"):
        make_task(make_vit(), mask_patch=24)(*make_batch())
    with pytest.raises(ValueError, match='MixPro could read; use attention="image"'):
        make_task(make_vit(**NO_CLASS_TOKEN))
    task = make_task(make_vit())
    plan = task.method.plan(task.view, *make_batch())
    with pytest.raises(ValueError, match="give targets"):
        task.method.label(task.view, plan.mixed, task.view, task.method.generator)
