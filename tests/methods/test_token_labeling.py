import pytest
import torch

import attnmix
from attnmix.methods.teacher import score_maps
from attnmix.methods.token_labeling import blended_with_truth, token_labels
from tests import references
from tests.conftest import NUM_CLASSES, tiny_vit

SIZE, GRID = (16, 24), (4, 6)


def make_task(model=None, **options):
    options = {"teacher": "self", **options}
    method = attnmix.create_method("token-labeling", num_classes=NUM_CLASSES, **options)
    return attnmix.MixTask(model or tiny_vit(), method)


def own_labels(teacher, images, smoothing=0.1):
    """[B][gh][gw] distributions of a teacher with the model's own grid."""
    scores = score_maps(teacher, images)
    return (scores.softmax(dim=1) * (1 - smoothing) + smoothing / NUM_CLASSES).permute(0, 2, 3, 1)


def reference_loss(model, head, out, labels, weight):
    """Token by token: which image it is of, and the cross-entropy against that image's label there."""
    mixed = out["mixed"]
    tokens = model.forward_features(mixed.images)[:, model.num_prefix_tokens :]
    losses = []
    for i in range(len(labels)):
        for row in range(GRID[0]):
            for column in range(GRID[1]):
                if mixed.source_mask is None:
                    share = float(mixed.source_weight[i])
                else:
                    cell = mixed.source_mask[i, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
                    share = float(cell.double().mean())
                partner = int(mixed.source_index[i])
                label = share * labels[partner][row][column] + (1 - share) * labels[i][row][column]
                losses.append(references.cross_entropy(head(tokens[i, row * GRID[1] + column]), label))
    return weight * torch.stack(losses).mean()


@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "elem", "token_head": False},
        {"dense_weight": 2.0, "box": "even"},
        {"box": "pixel", "smoothing": 0.0},
        {"mixup_prob": 1.0},
        {"prob": 0.0},
    ],
)
def test_every_token_is_trained_on_its_own_images_label(batch, options):
    teacher, model = tiny_vit(), tiny_vit().eval()
    task = make_task(model, teacher=teacher, **options)
    images, labels = torch.randn(batch, 3, *SIZE), torch.arange(batch) % NUM_CLASSES
    smoothing = options.get("smoothing", 0.1)
    own = own_labels(teacher, images, smoothing)
    for _ in range(2):
        out = task(images, labels)
        head = task.method.token_head or model.head
        wanted = reference_loss(model, head, out, own, options.get("dense_weight", 0.5))
        assert torch.allclose(out["losses"]["tokens"], wanted, atol=1e-5)
        mixed = out["mixed"]
        truth = torch.stack([references.smooth(int(label), NUM_CLASSES, smoothing) for label in labels])
        weight = mixed.source_weight[:, None]
        assert torch.allclose(out["target"], weight * truth[mixed.source_index] + (1 - weight) * truth, atol=1e-6)
    logits = model(mixed.images)
    classification = [references.cross_entropy(logits[i], out["target"][i]) for i in range(batch)]
    whole = wanted + torch.stack(classification).mean()
    references.assert_same_gradients(out["loss"], whole, model)


def test_a_coarser_map_is_resized_to_the_tokens():
    scores = torch.randn(2, NUM_CLASSES, 2, 3)
    fine = torch.nn.functional.interpolate(scores, size=GRID, mode="bilinear")
    assert torch.allclose(token_labels(scores, GRID).unflatten(1, GRID), fine.softmax(dim=1).permute(0, 2, 3, 1))
    assert torch.allclose(token_labels(scores, (1, 1))[:, 0], scores.mean(dim=(2, 3)).softmax(dim=1), atol=1e-6)


def test_boxes_keep_to_whole_patches_and_are_tl_aligns():
    images, labels = torch.randn(4, 3, *SIZE), torch.arange(4)
    other = attnmix.create_method("tl-align", num_classes=NUM_CLASSES, mixup_prob=0.0)
    ours, theirs = make_task(), attnmix.MixTask(tiny_vit(), other)
    for _ in range(5):
        assert ours.mix(images, labels).images.equal(theirs.mix(images, labels).images)
    masks = torch.cat([make_task(box="pixel", seed=s).mix(images, labels).source_mask[:1] for s in range(10)])
    cells = masks.float().unflatten(1, (4, 4)).unflatten(3, (6, 4)).mean(dim=(2, 4))
    assert ((cells > 0) & (cells < 1)).any()
    empty = [not make_task(box="even", seed=s).mix(images, labels).source_mask.any() for s in range(60)]
    assert any(empty)


@pytest.mark.parametrize("class_label", ["teacher", "both"])
def test_the_whole_images_label_may_be_the_teachers(class_label):
    teacher = tiny_vit(patch_size=8)
    task = make_task(teacher=teacher, class_label=class_label, smoothing=0.0)
    images, labels = torch.randn(4, 3, *SIZE), torch.arange(4)
    seen = score_maps(teacher, images).mean(dim=(2, 3)).softmax(dim=1)
    truth = torch.eye(NUM_CLASSES)[labels]
    if class_label == "both":
        part = [0.5 if int(row.argmax()) == int(label) else 0.1 for row, label in zip(seen, labels, strict=True)]
        part = torch.tensor(part)[:, None]
        seen = (1 - part) * seen + part * truth
    out = task(images, labels)
    weight = out["mixed"].source_weight[:, None]
    assert torch.allclose(out["target"], weight * seen.flip(0) + (1 - weight) * seen, atol=1e-5)


def test_truth_counts_half_where_the_teacher_agrees_and_a_tenth_where_not():
    seen, truth = torch.tensor([[0.6, 0.4], [0.6, 0.4]]), torch.eye(2)
    found = blended_with_truth(seen, truth)
    assert torch.allclose(found, torch.tensor([[0.8, 0.2], [0.54, 0.46]]))


def test_the_token_head_is_trained_and_not_exported():
    task = make_task()
    out = task(torch.randn(2, 3, *SIZE), torch.tensor([0, 1]))
    out["loss"].backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in task.method.token_head.parameters())
    assert not any("token_head" in name for name in task.get_eval_model().state_dict())
    assert make_task(seed=1).method.token_head.weight.equal(make_task(seed=1).method.token_head.weight)
    assert not list(make_task(token_head=False).method.parameters())


def test_without_dense_labels_it_is_a_box_of_patches():
    images, labels = torch.randn(4, 3, *SIZE), torch.arange(4)
    out = make_task(teacher=None, dense_weight=0.0)(images, labels)
    assert list(out["losses"]) == ["classification"]
    taught = make_task(dense_weight=0.0, class_label="teacher")(images, labels)
    assert list(taught["losses"]) == ["classification"]
    assert not torch.allclose(out["target"], taught["target"], atol=1e-3)


def test_a_teacher_that_says_one_class_everywhere_makes_tokens_cutmixs():
    images, labels = torch.randn(2, 3, *SIZE), torch.tensor([0, 1])
    sure = attnmix.mixing.LabelMaps(labels, labels[:, None, None, None], torch.full((2, 1, 1, 1), 50.0))
    model = tiny_vit().eval()
    task = make_task(model, teacher=None, token_head=False, smoothing=0.0)
    out = task(images, sure)
    mean = model.forward_features(out["mixed"].images)[:, 1:]
    mask = out["mixed"].source_mask[:, ::4, ::4].flatten(1)
    wanted = torch.stack(
        [
            -model.head(mean[i, n]).log_softmax(dim=0)[labels[1 - i] if mask[i, n] else labels[i]]
            for i in range(2)
            for n in range(24)
        ]
    ).mean()
    assert torch.allclose(out["losses"]["tokens"], 0.5 * wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dense_weight": -1.0}, "dense_weight is -1.0, but must be finite and not negative"),
        ({"class_label": "gt"}, 'class_label is "gt", but must be one of truth, teacher, both'),
        ({"box": "odd"}, 'box is "odd", but must be one of token, even, pixel'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method("token-labeling", num_classes=3, **options)
