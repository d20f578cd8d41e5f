import pytest
import torch
import torch.nn.functional as F

from attnmix.mixing.resized import INTERPOLATIONS, PasteResized, boxes_inside, shrunk_into_boxes

BOXES = torch.tensor([[0, 0, 1, 1], [3, 5, 7, 10], [0, 0, 16, 24], [15, 23, 1, 1], [4, 1, 12, 23]])


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_image_is_resized_into_its_box_as_torch_does_it(interpolation, dtype):
    images = torch.randn(5, 3, 16, 24, dtype=dtype)
    resized = shrunk_into_boxes(images, BOXES, interpolation=interpolation)
    assert resized.dtype == dtype
    for i, (top, left, height, width) in enumerate(BOXES.tolist()):
        corners = {} if interpolation == "nearest" else {"align_corners": False}
        wanted = F.interpolate(images[i : i + 1], size=(height, width), mode=interpolation, **corners)[0]
        ours = resized[i, :, top : top + height, left : left + width]
        assert torch.allclose(ours, wanted, atol=1e-4)
        assert interpolation != "nearest" or ours.equal(wanted)


def test_nearest_copies_pixels_at_every_size():
    images = torch.arange(224.0).expand(1, 1, 224, 224)
    for side in range(1, 225, 7):
        box = torch.tensor([[0, 0, side, side]])
        wanted = [float(place * 224 // side) for place in range(side)]
        ours = shrunk_into_boxes(images, box, interpolation="nearest")[0, 0, :side, :side]
        assert ours.tolist() == [wanted] * side


def test_half_precision_takes_its_pixels_from_the_right_places():
    images = torch.randn(5, 3, 16, 24).bfloat16()
    ours = shrunk_into_boxes(images, BOXES)
    assert ours.dtype == torch.bfloat16
    assert torch.allclose(ours.float(), shrunk_into_boxes(images.float(), BOXES), atol=0.03)


def test_boxes_have_the_images_shape_and_lie_inside_anywhere():
    ratio = torch.linspace(0.1, 0.8, 400, dtype=torch.float64)
    corner = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    boxes = boxes_inside(ratio, corner, image_size=(20, 30))
    for (top, left, height, width), share in zip(boxes.tolist(), ratio.tolist(), strict=True):
        assert (height, width) == (round(share * 20), round(share * 30))
        assert 0 <= top <= 20 - height
        assert 0 <= left <= 30 - width
    ends = torch.tensor([[0.0, 0.0], [1 - 1e-9, 1 - 1e-9]], dtype=torch.float64)
    assert boxes_inside(torch.full((2,), 0.5), ends, image_size=(20, 30)).tolist() == [
        [0, 0, 10, 15],
        [10, 15, 10, 15],
    ]
    tiny = boxes_inside(torch.tensor([0.001, 1.0]), ends, image_size=(20, 30))
    assert tiny[:, 2:].tolist() == [[1, 1], [20, 30]]


def test_every_place_is_equally_likely():
    corner = torch.rand(6000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    boxes = boxes_inside(torch.full((6000,), 0.5), corner, image_size=(6, 6))
    count = torch.bincount(boxes[:, 0] * 4 + boxes[:, 1], minlength=16)
    assert count.shape == (16,)
    assert (count / 6000 - 1 / 16).abs().max() < 0.012


def test_a_source_is_pasted_and_the_weight_is_the_boxes_area():
    images = torch.randn(5, 3, 16, 24)
    draw = PasteResized(torch.arange(5).roll(1), BOXES)
    mixed = draw.apply(images)
    for i, (top, left, height, width) in enumerate(BOXES.tolist()):
        wanted = images[i].clone()
        small = F.interpolate(images[i - 1][None], size=(height, width), mode="bilinear", align_corners=False)
        wanted[:, top : top + height, left : left + width] = small[0]
        assert torch.allclose(mixed.images[i], wanted, atol=1e-4)
        assert mixed.source_weight[i].item() == pytest.approx(height * width / (16 * 24))
        assert int(mixed.source_mask[i].sum()) == height * width
    outside = ~mixed.source_mask[:, None].expand_as(images)
    assert mixed.images[outside].equal(images[outside])


def test_an_image_that_is_its_own_partner_stays_itself():
    images = torch.randn(3, 3, 16, 24)
    mixed = PasteResized(torch.tensor([2, 1, 0]), BOXES[[1, 1, 4]]).apply(images)
    assert mixed.images[1].equal(images[1])
    assert not mixed.source_mask[1].any()
    assert mixed.source_weight[1] == 0
    assert mixed.source_weight[[0, 2]].min() > 0


def test_object_masks_travel_as_the_pixels_do():
    draw = PasteResized(torch.tensor([1, 0]), torch.tensor([[4, 6, 8, 12], [0, 0, 8, 12]]))
    masks = torch.zeros(2, 1, 16, 24)
    masks[1, 0, 4:12, 6:18] = 1
    moved = draw.apply(masks).images[:, 0]
    wanted = torch.zeros(16, 24)
    wanted[6:10, 9:15] = 1  # half the size, in the middle of the box
    assert moved[0].equal(wanted)
    assert moved[1].equal(masks[1, 0] * ~draw.apply(masks).source_mask[1])
