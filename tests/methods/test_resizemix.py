import pytest
import torch
import torch.nn.functional as F

import attnmix
from attnmix.methods.resizemix import scale_ratio
from tests.conftest import NUM_CLASSES


def make_method(name="resizemix", **options):
    return attnmix.create_method(name, num_classes=NUM_CLASSES, **options)


def make_batch(batch=4):
    return torch.randn(batch, 3, 16, 24), torch.arange(batch) % NUM_CLASSES


def test_ratios_are_uniform_between_low_and_high():
    assert scale_ratio(torch.tensor([0.0, 0.5, 1.0]), (0.1, 0.8)).tolist() == pytest.approx([0.1, 0.45, 0.8])


@pytest.mark.parametrize(
    ("mode", "pairing"), [("batch", "flip"), ("pair", "flip"), ("elem", "flip"), ("elem", "shuffle")]
)
def test_the_whole_source_lies_in_the_box(make_vit, mode, pairing):
    task = attnmix.MixTask(make_vit(), make_method(mode=mode, pairing=pairing))
    images, labels = make_batch(8)
    mixed = task.mix(images, labels)
    boxes = mixed.draw.box.tolist()
    assert len({tuple(box) for box in boxes}) == {"batch": 1, "pair": 4, "elem": 8}[mode]
    for i, (top, left, height, width) in enumerate(boxes):
        partner = int(mixed.source_index[i])
        wanted = images[i].clone()
        if partner != i:
            small = F.interpolate(images[partner][None], size=(height, width), mode="bilinear")[0]
            wanted[:, top : top + height, left : left + width] = small
        assert torch.allclose(mixed.images[i], wanted, atol=1e-4)
        area = 0 if partner == i else height * width / (16 * 24)
        assert mixed.source_weight[i].item() == pytest.approx(area)


def test_scale_bounds_both_sides(make_vit):
    images, labels = make_batch(64)
    for scale in ((0.1, 0.8), (0.5, 0.6), (1.0, 1.0)):
        box = attnmix.MixTask(make_vit(), make_method(scale=scale, mode="elem")).mix(images, labels).draw.box
        for column, side in ((2, 16), (3, 24)):
            assert round(scale[0] * side) <= box[:, column].min() <= box[:, column].max() <= round(scale[1] * side)
        if scale == (0.1, 0.8):
            assert box[:, 3].min() < 6
            assert box[:, 3].max() > 16


def test_a_ratio_of_one_is_the_source_itself(make_vit):
    images, labels = make_batch()
    out = attnmix.MixTask(make_vit(), make_method(scale=(1, 1), interpolation="nearest"))(images, labels)
    assert out["mixed"].images.equal(images.flip(0))
    assert out["mixed"].source_weight.equal(torch.ones(4))


def test_interpolation_changes_the_pixels_alone(make_vit):
    images, labels = make_batch()
    results = [
        attnmix.MixTask(make_vit(), make_method(interpolation=kind)).mix(images, labels)
        for kind in ("bilinear", "bicubic", "nearest")
    ]
    for number, one in enumerate(results):
        other = results[number - 1]
        assert not torch.allclose(one.images, other.images, atol=1e-2)
        assert one.source_mask.equal(other.source_mask)


@pytest.mark.parametrize("label", ["transmix", "tl-align"])
def test_other_labels_on_its_pixels(make_vit, label):
    images, labels = make_batch()
    out = attnmix.MixTask(make_vit(), make_method(label=label))(images, labels)
    plain = attnmix.MixTask(make_vit(), make_method())(images, labels)
    assert out["mixed"].images.equal(plain["mixed"].images)
    assert not torch.allclose(out["mixed"].source_weight, plain["mixed"].source_weight, atol=1e-4)


def test_in_turns_with_cutmix_and_under_tokenmixup(make_vit):
    images, labels = make_batch()
    task = attnmix.MixTask(make_vit(), make_method("cutmix+resizemix"))
    draws = {type(task(images, labels)["mixed"].draw).__name__ for _ in range(20)}
    assert draws == {"Paste", "PasteResized"}
    task = attnmix.MixTask(make_vit(), make_method("tokenmixup", base="resizemix", horizontal=1, vertical=2))
    out = task(images, labels)
    assert type(out["mixed"].draw).__name__ == "PasteResized"
    assert out["loss"].isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (0.8, 0.1)}, r"scale is \(0.8, 0.1\), but must be \(low, high\) with 0 < low <= high <= 1"),
        ({"scale": (0.0, 0.5)}, r"scale is \(0.0, 0.5\)"),
        ({"scale": (0.5, 1.5)}, r"scale is \(0.5, 1.5\)"),
        ({"scale": (0.5,)}, r"scale is \(0.5,\)"),
        ({"interpolation": "area"}, 'interpolation is "area", but must be one of bilinear, bicubic, nearest'),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_method(**options)
