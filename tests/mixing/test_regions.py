import math

import pytest
import torch

from attnmix.mixing import (
    attention_windows,
    boxes_to_mask,
    cutmix_boxes,
    even_cutmix_boxes,
    max_windows,
    min_windows,
    random_windows,
    scale_boxes,
    token_boxes,
    window_size,
    window_sums,
)

SIZE = (5, 8)


def all_boxes(share: float) -> torch.Tensor:
    """Boxes of one share at every place: centres on a grid much finer than the pixels."""
    steps = torch.arange(0, 1, 1 / 360)
    centre = torch.cartesian_prod(steps, steps)
    return cutmix_boxes(torch.full((len(centre),), share), centre, image_size=SIZE)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_cutmix_boxes_reach_every_legal_place_equally_often(share):
    side = [math.floor(length * math.sqrt(share)) for length in SIZE]
    wanted = []
    for length, part in zip(SIZE, side, strict=True):
        # every interval of `part` pixels whose middle lies on [0, length], cut at the border
        starts = [s for s in range(-part, length + 1) if 0 <= 2 * s + part <= 2 * length]
        wanted.append([(max(s, 0), min(s + part, length)) for s in starts])
    boxes = all_boxes(share)
    for axis in (0, 1):
        spans = torch.stack([boxes[:, axis], boxes[:, axis] + boxes[:, axis + 2]], dim=1)
        seen, count = spans.unique(dim=0, return_counts=True)
        assert sorted(map(tuple, seen.tolist())) == sorted(set(wanted[axis]))
        expected = {span: wanted[axis].count(span) / len(wanted[axis]) for span in wanted[axis]}
        for span, number in zip(seen.tolist(), count.tolist(), strict=True):
            assert number / len(boxes) == pytest.approx(expected[tuple(span)], abs=0.004)


def test_cutmix_boxes_stay_inside_and_are_symmetric():
    boxes = all_boxes(0.3)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor(SIZE)).all()
    mask = boxes_to_mask(boxes, SIZE).float().mean(dim=0)
    assert torch.allclose(mask, mask.flip(0), atol=0.01)
    assert torch.allclose(mask, mask.flip(1), atol=0.01)


def test_cutmix_boxes_full_and_empty():
    middle = torch.full((1, 2), 0.5)
    assert cutmix_boxes(torch.ones(1), middle, image_size=(6, 8)).tolist() == [[0, 0, 6, 8]]
    empty = cutmix_boxes(torch.zeros(1), middle, image_size=(6, 8))
    assert empty[0, 2] * empty[0, 3] == 0
    assert not boxes_to_mask(empty, (6, 8)).any()


def test_token_boxes_have_every_size_and_place_and_are_never_empty():
    steps = torch.cartesian_prod(torch.linspace(0, 0.999, 40), torch.linspace(0, 0.999, 40))
    sizes = set()
    for share in torch.linspace(0, 1, 60):
        boxes = token_boxes(share.expand(len(steps)), steps, image_size=SIZE)
        assert (boxes[:, 2:] >= 1).all()
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor(SIZE)).all()
        wished = [max(1, round(length * math.sqrt(share))) for length in SIZE]
        assert boxes[:, 2:].amax(dim=0).tolist() == wished
        sizes.add(tuple(wished))
        assert boxes_to_mask(boxes, SIZE).any(dim=0).all()
    assert {rows for rows, _ in sizes} == set(range(1, SIZE[0] + 1))
    assert {columns for _, columns in sizes} == set(range(1, SIZE[1] + 1))


def test_even_boxes_are_the_original_rule_for_every_share_and_centre():
    size = (7, 9)
    for share in torch.linspace(0, 1, 12):
        for row in range(size[0]):
            for column in range(size[1]):
                wanted = []
                for centre, length in zip((row, column), size, strict=True):
                    half = int(length * math.sqrt(share)) // 2
                    wanted.append((max(centre - half, 0), min(centre + half, length)))
                centre = torch.tensor([[(row + 0.5) / size[0], (column + 0.5) / size[1]]])
                box = even_cutmix_boxes(share[None], centre, image_size=size)[0].tolist()
                assert box == [wanted[0][0], wanted[1][0], *(stop - start for start, stop in wanted)]


def test_random_windows_reach_every_place_inside_equally_often():
    boxes = random_windows((4000, 4, 6), (2, 3), torch.Generator().manual_seed(0))
    places, count = boxes.unique(dim=0, return_counts=True)
    assert sorted(map(tuple, places.tolist())) == [(top, left, 2, 3) for top in range(3) for left in range(4)]
    assert (count.float() / 4000 - 1 / 12).abs().max() < 0.02


def test_boxes_to_mask_is_the_box_for_every_box():
    rows, columns = 3, 4
    for top in range(rows):
        for left in range(columns):
            for height in range(rows - top + 1):
                for width in range(columns - left + 1):
                    mask = boxes_to_mask(torch.tensor([[top, left, height, width]]), (rows, columns))[0]
                    wanted = torch.zeros(rows, columns, dtype=torch.bool)
                    wanted[top : top + height, left : left + width] = True
                    assert mask.equal(wanted)


def test_scale_boxes_to_pixels_of_non_square_patches():
    assert scale_boxes(torch.tensor([[1, 2, 3, 4]]), (2, 5)).tolist() == [[2, 10, 6, 20]]


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (1, 6)])
def test_windows_equal_a_brute_force_search_for_every_size(grid):
    scores = torch.rand(7, *grid)
    for height in range(1, grid[0] + 1):
        for width in range(1, grid[1] + 1):
            best, worst = max_windows(scores, (height, width)), min_windows(scores, (height, width))
            sums = window_sums(scores, (height, width))
            for image in range(len(scores)):
                found = {
                    (top, left): scores[image, top : top + height, left : left + width].sum().item()
                    for top in range(grid[0] - height + 1)
                    for left in range(grid[1] - width + 1)
                }
                assert sums[image].flatten().tolist() == pytest.approx(list(found.values()), abs=1e-5)
                assert best[image].tolist() == [*max(found, key=found.get), height, width]
                assert worst[image].tolist() == [*min(found, key=found.get), height, width]


def test_windows_take_the_first_on_ties():
    assert max_windows(torch.ones(2, 5, 7), (2, 3)).tolist() == [[0, 0, 2, 3]] * 2
    assert min_windows(torch.full((1, 14, 14), 1 / 196), (5, 5)).tolist() == [[0, 0, 5, 5]]
    scores = torch.zeros(1, 4, 4)
    scores[0, 0, 3] = scores[0, 2, 1] = 1.0
    assert max_windows(scores, (1, 1)).tolist() == [[0, 3, 1, 1]]


def test_windows_of_nan_scores_stay_on_the_grid():
    boxes = max_windows(torch.full((1, 3, 4), torch.nan), (2, 2))
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor([3, 4])).all()


def test_window_size_by_ratio_is_the_floor_of_one_delta_on_both_sides():
    for uniform in torch.linspace(0, 0.999, 50).tolist():
        delta = 0.25 + 0.5 * uniform
        size = window_size(uniform, grid=(14, 9), side_ratio=(0.25, 0.75))
        assert size == (math.floor(delta * 14), math.floor(delta * 9))


def test_window_size_by_integer_is_uniform_and_reaches_both_ends():
    drawn = [
        window_size(u, grid=(14, 14), side_ratio=(0.25, 0.75), side_law="integer")[0]
        for u in torch.arange(0, 1, 1 / 800).tolist()
    ]
    assert set(drawn) == set(range(3, 11))
    assert all(drawn.count(side) == 100 for side in range(3, 11))
    by_ratio = [window_size(u, grid=(14, 14), side_ratio=(0.25, 0.75))[0] for u in (0.0, 0.999)]
    assert by_ratio == [3, 10]


def test_window_size_is_at_least_one_and_at_most_the_grid():
    assert window_size(0.0, grid=(2, 3), side_ratio=(0.25, 0.75)) == (1, 1)
    assert window_size(0.999, grid=(4, 4), side_ratio=(1.0, 1.0), side_law="integer") == (4, 4)


def test_windows_of_a_self_partner_coincide():
    attention = torch.rand(3, 4, 5)
    source, target = attention_windows(attention, torch.tensor([2, 1, 0]), (2, 2))
    assert source[1].equal(target[1])
    assert not source[0].equal(target[0])
