import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision import transforms

from attnmix.data.mask_geometry import MaskGeometry, box_to_mask
from attnmix.data.transforms import CROP_MODES, evaluation_transform

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}  # pixels come out from 0 to 1
ORIGINALS = [(97, 140), (140, 97), (64, 64), (33, 300)]  # height, width


def evaluation(mode: str, size: tuple[int, int], crop_pct: float):
    return evaluation_transform((3, *size), **PLAIN, crop_mode=mode, crop_pct=crop_pct)


def where(edge: float, side: int, other: int, target: tuple[int, int], axis: int, mode: str, crop_pct: float):
    """An original's edge in the model's pixels, from what timm says its crop modes do."""
    scaled = [int(length / crop_pct) for length in target]
    ratios = [side / scaled[axis], other / scaled[1 - axis]]
    ratio = {"squash": ratios[0], "center": min(ratios), "border": max(ratios)}[mode]
    resized = side / ratio
    return min(max(edge / ratio - (resized - target[axis]) / 2, 0), target[axis])


@pytest.mark.parametrize("mode", CROP_MODES)
@pytest.mark.parametrize("target", [(56, 56), (32, 80)])
@pytest.mark.parametrize("crop_pct", [1.0, 0.875])
def test_boxes_go_where_the_crop_modes_put_them(mode, target, crop_pct):
    geometry = MaskGeometry(evaluation(mode, target, crop_pct))
    seen = 0
    for height, width in ORIGINALS:
        for top, left, bottom, right in [
            (0.1, 0.2, 0.7, 0.5),
            (0, 0, 1, 1),
            (0.3, 0.6, 0.9, 1),
            (0, 0.4, 0.5, 0.6),
        ]:
            box = [round(top * height), round(left * width), round(bottom * height), round(right * width)]
            sides = torch.tensor([[box[0], box[1], box[2] - box[0], box[3] - box[1]]])
            wanted = [
                where(edge, *((height, width) if i % 2 == 0 else (width, height)), target, i % 2, mode, crop_pct)
                for i, edge in enumerate(box)
            ]
            found = geometry.boxes(sides, (height, width))
            if len(found) == 0:
                assert min(wanted[2] - wanted[0], wanted[3] - wanted[1]) < 1
                continue
            seen += 1
            top, left, high, wide = found[0].tolist()
            assert np.abs(np.array([top, left, top + high, left + wide]) - wanted).max() <= 1.01
    assert seen >= 10


@pytest.mark.parametrize("mode", CROP_MODES)
@pytest.mark.parametrize(("height", "width"), ORIGINALS[:3])
def test_a_mask_lies_where_a_picture_of_it_is_seen(mode, height, width):
    mask = np.zeros((height, width), np.uint8)
    mask[height // 4 : height // 2, width // 5 : width // 2] = 1
    mask[height // 2 :, width // 3 : width // 3 + 12] = 1
    transform = evaluation(mode, (48, 48), 0.9)
    picture = transform(Image.fromarray(np.repeat(255 * mask[..., None], 3, axis=2)))[0]
    found = MaskGeometry(transform).mask(mask)
    assert found.shape == (48, 48)
    assert found.dtype == torch.int8
    sure = (picture - 0.5).abs() > 0.49  # not at an edge
    assert sure.float().mean() > 0.6
    assert torch.equal(found[sure] == 1, picture[sure] > 0.5)


def test_void_is_not_counted_and_what_is_added_is_ground():
    mask = np.full((10, 40), 255, np.uint8)
    found = MaskGeometry(evaluation("border", (40, 40), 1.0)).mask(mask)
    assert (found[15:25] == -1).all()
    assert (found[:15] == 0).all()
    assert (found[25:] == 0).all()


def test_a_pixel_takes_one_original_value_and_nothing_in_between():
    mask = np.random.default_rng(0).choice(np.array([0, 1, 255], np.uint8), (37, 53))
    for mode in CROP_MODES:
        assert MaskGeometry(evaluation(mode, (24, 24), 0.875)).mask(mask).unique().tolist() == [-1, 0, 1]


def test_the_transform_itself_keeps_its_interpolation_and_its_fill():
    transform = create_transform((3, 20, 20), is_training=False, crop_mode="border", mean=(0.5, 0.5, 0.5))
    before = repr(transform), transform.transforms[1].fill
    MaskGeometry(transform)
    assert (repr(transform), transform.transforms[1].fill) == before


def test_boxes_that_are_not_seen_vanish():
    geometry = MaskGeometry(evaluation("center", (32, 32), 1.0))
    boxes = torch.tensor([[0, 0, 32, 10], [0, 60, 32, 8], [4, 4, 0, 9]])  # the crop shows columns 48 to 80
    assert geometry.boxes(boxes, (32, 128)).tolist() == [[0, 12, 32, 8]]
    assert geometry.boxes(torch.empty(0, 4), (32, 128)).shape == (0, 4)


def test_a_box_holds_the_pixels_whose_centres_it_holds():
    assert box_to_mask((0.6, -3.0, 1.0, 5.4), (3, 4)).tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert box_to_mask((-9.0, 0.0, 5.0, 4.0), (3, 4)).sum() == 0


def test_grey_models_and_trimmed_borders():
    grey = evaluation_transform((1, 16, 16), mean=(0.0,), std=(1.0,), crop_mode="squash")
    assert MaskGeometry(grey).mask(np.ones((30, 20), np.uint8)).tolist() == [[1] * 16] * 16
    trimmed = create_transform(
        (3, 16, 16), is_training=False, crop_mode="squash", crop_pct=1.0, crop_border_pixels=4
    )
    edge = np.ones((24, 24), np.uint8)
    edge[4:20, 4:20] = 0
    assert MaskGeometry(trimmed).mask(edge).sum() == 0


def test_steps_of_unknown_geometry_are_named():
    with pytest.raises(ValueError, match="cannot bring annotations through RandomHorizontalFlip.*evaluation"):
        MaskGeometry(transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()]))
    with pytest.raises(ValueError, match="cannot bring annotations through RandomResizedCrop"):
        MaskGeometry(create_transform((3, 16, 16), is_training=True))
