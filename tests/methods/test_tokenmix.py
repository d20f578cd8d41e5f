import pytest
import torch

import attnmix
from attnmix.methods.teacher import score_maps
from attnmix.methods.tokenmix import activation_weight
from tests.conftest import NUM_CLASSES, tiny_vit


def make_task(model=None, **options):
    options = {"mixup_prob": 0.0, "smoothing": 0.0, "teacher": "self", **options}
    return attnmix.MixTask(
        model or tiny_vit(), attnmix.create_method("tokenmix", num_classes=NUM_CLASSES, **options)
    )


def token_mask(mixed, patch=4):
    """Which tokens are the source's; fails on a token of both."""
    mask = mixed.source_mask.unflatten(1, (-1, patch)).unflatten(3, (-1, patch)).float().mean(dim=(2, 4))
    assert ((mask == 0) | (mask == 1)).all()
    return mask.bool()


def reference_weight(scores, label, partner, mask):
    """Token by token: what is seen of each image's own normalised map, divided by what is seen of both."""
    rows, columns = mask.shape[1:]
    seen = []
    for i in range(len(label)):
        sums = []
        for image, wanted in ((partner[i], True), (i, False)):
            whole = part = 0.0
            for row in range(rows):
                for column in range(columns):
                    value = max(float(scores[image, label[image], row, column]), 0.0)
                    whole += value
                    part += value * (bool(mask[i, row, column]) == wanted)
            sums.append(part / whole)
        seen.append(sums[0] / (sums[0] + sums[1]))
    return torch.tensor(seen)


@pytest.mark.parametrize("batch", [3, 6])
@pytest.mark.parametrize("mode", ["batch", "elem"])
def test_labels_are_what_is_seen_of_each_map(batch, mode):
    teacher = tiny_vit()
    task = make_task(teacher=teacher, mode=mode)
    images, labels = torch.randn(batch, 3, 16, 24), torch.arange(batch) % NUM_CLASSES
    scores = score_maps(teacher, images)
    for _ in range(5):
        out = task(images, labels)
        mixed = out["mixed"]
        wanted = reference_weight(scores, labels.tolist(), mixed.source_index.tolist(), token_mask(mixed))
        assert torch.allclose(mixed.source_weight, wanted, atol=1e-5)
        hot = torch.eye(NUM_CLASSES)
        target = wanted[:, None] * hot[labels[mixed.source_index]] + (1 - wanted[:, None]) * hot[labels]
        assert torch.allclose(out["target"], target, atol=1e-5)


def test_activation_alike_everywhere_gives_cutmixs_label():
    mask = torch.rand(4, 4, 6) < 0.3
    weight = activation_weight(torch.full((4, 4, 6), 1 / 24), torch.arange(4).flip(0), mask)
    assert torch.allclose(weight, mask.float().mean(dim=(1, 2)), atol=1e-6)


def test_the_two_sums_are_made_to_add_up_to_one():
    activation = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]])
    mask = torch.tensor([[[False, True]], [[False, True]]])
    # image 0 shows all of its own (1) and half of the other: 0.5 / 1.5; image 1 half of its own, none of the other
    weight = activation_weight(activation, torch.tensor([1, 0]), mask)
    assert weight.tolist() == pytest.approx([1 / 3, 0.0])
    hidden = torch.tensor([[[True, False]], [[False, True]]])
    other = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # nothing of either image is seen in the first
    assert activation_weight(other, torch.tensor([1, 0]), hidden).tolist() == pytest.approx([0.5, 0.5])


def test_area_asks_nobody_and_is_the_masks_share():
    task = make_task(teacher=None, target="area")
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    mixed = task(images, labels)["mixed"]
    assert mixed.source_weight.equal(mixed.source_mask.float().mean(dim=(1, 2)))
    other = make_task()(images, labels)["mixed"]
    assert other.source_mask.equal(mixed.source_mask)  # the same draws
    assert not torch.allclose(other.source_weight, mixed.source_weight, atol=1e-3)


def test_a_fixed_share_is_always_covered_alike():
    task = make_task(share=0.5, min_block=0.0, mode="elem", target="area")
    images, labels = torch.randn(8, 3, 16, 24), torch.arange(8) % NUM_CLASSES
    weights = torch.cat([task(images, labels)["mixed"].source_weight for _ in range(4)])
    assert weights.mean().item() == pytest.approx(0.5, abs=0.02)
    assert weights.max() <= 0.5
    drawn = make_task(mode="elem", target="area")(images, labels)["mixed"].source_weight
    assert drawn.std() > 0.1


def test_random_masks_are_single_tokens_and_regions_are_boxes():
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    task = make_task(mask="random", share=0.5)
    assert int(token_mask(task(images, labels)["mixed"])[0].sum()) == 12
    task = make_task(mask="region", mode="elem")
    for _ in range(5):
        for mask in token_mask(task(images, labels)["mixed"]):
            rows, columns = mask.any(dim=1), mask.any(dim=0)
            assert mask.equal(rows[:, None] & columns[None])


@pytest.mark.parametrize(
    "options",
    [
        {"mask": "random"},
        {"mask": "region"},
        {"share": 0.3},
        {"min_block": 0.4},
        {"min_aspect": 1.0},
        {"cutmix_alpha": 0.2},
        {"target": "area"},
    ],
)
def test_every_option_changes_the_weights(options):
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    weights = []
    for task in (make_task(), make_task(**options)):
        weights.append(torch.stack([task(images, labels)["mixed"].source_weight for _ in range(4)]))
    assert not torch.allclose(*weights, atol=1e-4)


def test_soft_labels_weigh_their_classes_maps():
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    hot = torch.nn.functional.one_hot(labels, NUM_CLASSES).float()
    hard, same = make_task()(images, labels)["mixed"], make_task()(images, hot)["mixed"]
    assert hard.source_weight.equal(same.source_weight)
    soft = make_task()(images, hot / 2 + hot.roll(1, 1) / 2)["mixed"]
    assert not torch.allclose(soft.source_weight, hard.source_weight, atol=1e-4)


def test_a_label_that_is_none_is_named():
    with pytest.raises(ValueError, match="label 5 is outside 0..4"):
        make_task()(torch.randn(2, 3, 16, 24), torch.tensor([0, 5]))


def test_nobody_is_asked_where_mixup_blends():
    teacher = tiny_vit()
    task = make_task(teacher=teacher, mixup_prob=1.0)
    teacher.forward_features = None
    assert task(torch.randn(2, 3, 16, 24), torch.tensor([0, 1]))["mixed"].source_mask is None


def test_mixup_half_of_the_time_by_default():
    task = attnmix.MixTask(tiny_vit(), attnmix.create_method("tokenmix", num_classes=5, target="area"))
    images, labels = torch.randn(2, 3, 16, 24), torch.tensor([0, 1])
    blended = [task.mix(images, labels).source_mask is None for _ in range(200)]
    assert sum(blended) / 200 == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "cam"}, 'target is "cam", but must be one of activation, area'),
        ({"mask": "box"}, 'mask is "box", but must be one of block, random, region'),
        ({"share": 0.0}, "share is 0.0, but must be above 0"),
        ({"min_block": 14}, "min_block is 14, but a share of the image"),
        ({"min_aspect": 0.0}, "min_aspect is 0.0, but must be above 0"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("tokenmix", num_classes=3, **options)
