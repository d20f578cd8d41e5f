import pytest
import torch

from attnmix.mixing.holes import Cut, square_holes


@pytest.mark.parametrize("side", [1, 2, 3, 4, 9, 12])
def test_holes_are_squares_clipped_at_the_border_and_every_place_is_drawn(side):
    steps = 60
    places = [(row / steps, column / steps) for row in range(steps) for column in range(steps)]
    boxes = square_holes(side, torch.tensor(places, dtype=torch.float64), image_size=(8, 12)).tolist()
    for axis, size in ((0, 8), (1, 12)):
        # an odd square has its centre on a pixel, an even one between two, the image's edges included
        starts = [centre - side // 2 for centre in range(size + 1 - side % 2)]
        wanted = {(max(start, 0), min(start + side, size) - max(start, 0)) for start in starts}
        assert {(box[axis], box[axis + 2]) for box in boxes} == wanted


def test_all_four_edges_are_touched_equally_often():
    centre = torch.rand(8000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for side in (4, 5):
        top, left, height, width = square_holes(side, centre, image_size=(16, 16)).unbind(1)
        touched = [
            float(edge.float().mean()) for edge in (top == 0, left == 0, top + height == 16, left + width == 16)
        ]
        assert max(touched) - min(touched) < 0.03


def test_a_hole_is_zero_and_nothing_comes_from_a_source():
    images = torch.randn(2, 3, 8, 12)
    before = images.clone()
    mixed = Cut(torch.tensor([[0, 0, 3, 4], [5, 6, 3, 6]])).apply(images)
    for image, (top, left, height, width) in enumerate([(0, 0, 3, 4), (5, 6, 3, 6)]):
        for row in range(8):
            for column in range(12):
                inside = top <= row < top + height and left <= column < left + width
                wanted = torch.zeros(3) if inside else images[image, :, row, column]
                assert mixed.images[image, :, row, column].equal(wanted)
    assert images.equal(before)
    assert mixed.source_index.tolist() == [0, 1]
    assert mixed.source_weight.tolist() == [0, 0]
    assert not mixed.source_mask.any()
    assert mixed.draw.kind == "cut"


def test_object_masks_lose_what_is_cut():
    draw = Cut(torch.tensor([[0, 0, 4, 4]]))
    assert draw.apply(torch.ones(1, 1, 8, 8)).images.sum() == 48


def test_not_even_nan_stays_in_a_hole():
    mixed = Cut(torch.tensor([[0, 0, 8, 8]])).apply(torch.full((1, 3, 8, 8), torch.nan))
    assert mixed.images.equal(torch.zeros(1, 3, 8, 8))
