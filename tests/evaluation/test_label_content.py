import pytest
import timm
import torch

import attnmix
from attnmix.evaluation.label_content import (
    centre_prior,
    label_content_controls,
    label_content_error,
    pasting_method,
    visible_share,
)
from attnmix.mixing import Paste, boxes_to_mask
from tests.conftest import NUM_CLASSES


@pytest.fixture
def pictures():
    """Images, labels and object masks: a box each, of various sizes."""
    boxes = torch.stack(
        [torch.arange(12) % 5, torch.arange(12) % 7, 4 + torch.arange(12) % 4, torch.full((12,), 6)], 1
    )
    return torch.randn(12, 3, 16, 24), torch.arange(12) % NUM_CLASSES, boxes_to_mask(boxes, (16, 24))


def test_visible_share_counts_object_pixels_where_they_ended_up():
    masks = torch.zeros(2, 4, 4, dtype=torch.bool)
    masks[0, 0, :] = True  # 4 pixels in the first row
    masks[1, 3, :3] = True  # 3 pixels in the last row
    # rows 2 and 3 of image 1 go to rows 0 and 1 of image 0: its own object is covered, the other's moves in
    draw = Paste(torch.tensor([1, 0]), torch.tensor([[0, 0, 2, 4], [0, 0, 1, 2]]), torch.tensor([[2, 0], [0, 0]]))
    share = visible_share(draw.apply(torch.zeros(2, 3, 4, 4)), masks)
    assert share[0] == 1.0
    assert share[1].item() == pytest.approx(2 / 5)  # two pixels of image 0's object beside the three of its own


def test_visible_share_is_nan_where_no_object_is_left():
    masks = torch.zeros(1, 4, 4, dtype=torch.bool)
    draw = Paste(torch.tensor([0]), torch.tensor([[0, 0, 2, 2]]))
    assert visible_share(draw.apply(torch.zeros(1, 3, 4, 4)), masks).isnan().all()


def test_error_of_area_labels_equals_a_plain_loop(make_vit, pictures):
    images, labels, masks = pictures
    method = pasting_method("cutmix", num_classes=NUM_CLASSES, seed=3)
    found = label_content_error(make_vit(), method, images, labels, masks, seed=1)

    draws = pasting_method("cutmix", num_classes=NUM_CLASSES, seed=3)
    order = torch.Generator().manual_seed(1)
    errors: dict[int, list[float]] = {}
    by_draw = []
    for _ in range(192):
        index = torch.randperm(12, generator=order)[:8]
        mixed = draws.mix(None, images[index])
        by_draw.append([])
        for i in range(8):
            partner = index[mixed.source_index[i]]
            inside = mixed.source_mask[i]
            source = int((masks[partner] & inside).sum())
            target = int((masks[index[i]] & ~inside).sum())
            if source + target:
                weight = float(inside.float().mean())
                errors.setdefault(int(index[i]), []).append(weight - source / (source + target))
                by_draw[-1].append(weight - source / (source + target))
    flat = torch.tensor([e for row in errors.values() for e in row], dtype=torch.float64)
    assert found.mean == pytest.approx(flat.abs().mean().item(), abs=1e-6)
    assert found.bias == pytest.approx(flat.mean().item(), abs=1e-6)

    def squares(clusters):
        sums = [sum(abs(e) - found.mean for e in row) for row in clusters]
        return sum(s * s for s in sums) * len(sums) / (len(sums) - 1)

    single = sum((abs(e) - found.mean) ** 2 for row in by_draw for e in row)
    wanted = max(squares(errors.values()) + squares(by_draw) - single, single) ** 0.5 / len(flat)
    assert found.standard_error == pytest.approx(wanted, rel=1e-4)


def test_the_standard_error_is_of_the_size_of_the_spread_over_draws(make_vit, pictures):
    model = make_vit()
    for name in ("cutmix", "smmix"):
        found = [
            label_content_error(model, pasting_method(name, num_classes=NUM_CLASSES, seed=s), *pictures, seed=s)
            for s in range(5)
        ]
        spread = torch.tensor([row.mean for row in found]).std().item()
        assert max(row.standard_error for row in found) > 0.7 * spread


def test_the_model_is_judged_in_evaluation_mode_and_given_back(make_vit, pictures):
    model = make_vit(proj_drop_rate=0.5).train()
    method = pasting_method("transmix", num_classes=NUM_CLASSES)
    first = label_content_error(model, method, *pictures)
    method.generator.manual_seed(0)
    assert label_content_error(model, method, *pictures) == first
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_method_is_made_to_paste_and_keeps_its_other_options():
    method = pasting_method("transmix", num_classes=3, attention_share=1.0, prob=0.2, mixup_prob=0.9)
    assert (method.sampler.prob, method.sampler.mixup_prob, method.sampler.mode) == (1.0, 0.0, "elem")
    assert method.label.attention_share == 1.0
    assert type(pasting_method("mixup+cutmix", num_classes=3)) is attnmix.METHODS["cutmix"]
    assert pasting_method("mixup", num_classes=3) is None
    assert pasting_method("none", num_classes=3) is None


def test_controls_need_no_training(make_vit, pictures):
    images, labels, masks = pictures
    rows = label_content_controls(make_vit(), images, labels, masks, num_classes=NUM_CLASSES)
    assert [name.split(" (")[0] for name in rows] == [
        "constant one half",
        "area of the box",
        "centre prior in attention's place",
        "untrained network",
        "area of whole patches",
        "untrained network",
    ]
    assert rows["area of whole patches (TL-Align)"] != rows["area of the box (CutMix)"]
    traced = label_content_error(
        make_vit(), pasting_method("tl-align", num_classes=NUM_CLASSES), images, labels, masks
    )
    assert rows["untrained network (TL-Align)"].mean == pytest.approx(traced.mean, abs=1e-6)
    area = label_content_error(
        make_vit(), pasting_method("cutmix", num_classes=NUM_CLASSES), images, labels, masks
    )
    assert rows["area of the box (CutMix)"].mean == pytest.approx(area.mean, abs=1e-6)
    assert rows["constant one half"].mean > area.mean


def test_controls_read_image_attention_where_there_is_no_class_token(make_vit, pictures):
    images, labels, masks = pictures
    model = make_vit(class_token=False, global_pool="avg")
    assert len(label_content_controls(model, images, labels, masks, num_classes=NUM_CLASSES)) == 6


def test_controls_leave_out_labels_that_cannot_be_traced(pictures):
    _, labels, masks = pictures
    images, masks = torch.randn(12, 3, 32, 48), masks.repeat_interleave(2, 1).repeat_interleave(2, 2)
    size = {"img_size": (32, 48), "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.create_model("xcit_nano_12_p16_224", num_classes=NUM_CLASSES, **size)
    rows = label_content_controls(model, images, labels, masks, num_classes=NUM_CLASSES)
    assert not any("TL-Align" in name for name in rows)


def test_centre_prior_is_symmetric_and_highest_in_the_middle():
    prior = centre_prior((5, 7)).reshape(5, 7)
    assert prior.sum().item() == pytest.approx(1)
    assert torch.allclose(prior, prior.flip(0))
    assert torch.allclose(prior, prior.flip(1))
    assert prior.argmax() == 2 * 7 + 3
