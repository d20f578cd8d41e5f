import pytest
import torch

import attnmix
from attnmix.methods.teacher import score_maps
from tests.conftest import NUM_CLASSES, tiny_vit


def make_task(model=None, **options):
    options = {"teacher": "self", **options}
    return attnmix.MixTask(
        model or tiny_vit(), attnmix.create_method("relabel", num_classes=NUM_CLASSES, **options)
    )


def reference_labels(scores, *, single=False, smoothing=0.0):
    """Image by image: mean logit of each class over the cells, softmax, and its best class where `single`."""
    rows = []
    for image in scores:
        means = torch.stack([torch.stack(list(plane.flatten())).sum() / plane.numel() for plane in image])
        row = (means - means.max()).exp()
        row = row / row.sum()
        if single:
            row = torch.tensor([float(c == int(row.argmax())) for c in range(len(row))])
        rows.append(row * (1 - smoothing) + smoothing / len(row))
    return torch.stack(rows)


@pytest.mark.parametrize("batch", [1, 3, 6])
@pytest.mark.parametrize("options", [{}, {"classes": "single"}, {"smoothing": 0.2}, {"mode": "elem"}])
def test_targets_are_the_teachers_mixed_by_area(batch, options):
    teacher = tiny_vit(patch_size=8)
    task = make_task(teacher=teacher, **options)
    images, labels = torch.randn(batch, 3, 16, 24), torch.arange(batch) % NUM_CLASSES
    single, smoothing = options.get("classes") == "single", options.get("smoothing", 0.0)
    wanted = reference_labels(score_maps(teacher, images), single=single, smoothing=smoothing)
    for _ in range(4):
        out = task(images, labels)
        mixed = out["mixed"]
        for i in range(batch):
            share = float(mixed.source_mask[i].double().mean())
            target = share * wanted[mixed.source_index[i]] + (1 - share) * wanted[i]
            assert torch.allclose(out["target"][i], target, atol=1e-5)


def test_a_teacher_that_knows_the_truth_makes_it_cutmix():
    images, labels = torch.randn(4, 3, 16, 24), torch.arange(4)
    sure = attnmix.mixing.LabelMaps(
        labels, labels[:, None, None, None].expand(4, 1, 4, 6), torch.full((4, 1, 4, 6), 50.0)
    )
    relabel, cutmix = (
        attnmix.MixTask(tiny_vit(), attnmix.create_method(name, num_classes=NUM_CLASSES, smoothing=0.0))
        for name in ("relabel", "cutmix")
    )
    for _ in range(3):
        ours, theirs = relabel(images, sure), cutmix(images, labels)
        assert ours["mixed"].images.equal(theirs["mixed"].images)
        assert torch.allclose(ours["target"], theirs["target"], atol=1e-6)
        assert torch.allclose(ours["loss"], theirs["loss"], atol=1e-5)


def test_the_ground_truth_does_not_count():
    images = torch.randn(4, 3, 16, 24)
    one, other = (make_task()(images, labels) for labels in (torch.arange(4), torch.zeros(4, dtype=torch.long)))
    assert one["loss"].equal(other["loss"])


def test_images_that_are_not_mixed_have_the_teachers_labels_too():
    task = make_task(prob=0.0)
    images, labels = torch.randn(3, 3, 16, 24), torch.arange(3)
    out = task(images, labels)
    assert out["mixed"].images is images
    assert torch.allclose(out["target"], reference_labels(score_maps(tiny_vit(), images)), atol=1e-5)


def test_no_gradient_reaches_the_model_through_its_own_labels():
    out = make_task()(torch.randn(2, 3, 16, 24), torch.tensor([0, 1]))
    assert not out["target"].requires_grad


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match='classes is "some", but must be one of multi, single'):
        attnmix.create_method("relabel", num_classes=3, classes="some")
