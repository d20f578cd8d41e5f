import itertools

import numpy as np
import pytest
import torch

from attnmix.mixing.block_masks import (
    block_grid,
    block_saliency,
    border_costs,
    cheapest_levels,
    checked_blocks,
    drawn_blocks,
    level_energy,
    split_pair_costs,
    spread_blocks,
)


def slow_energy(levels, unary, below, right):
    """Sum over blocks and borders of one mask, in plain loops."""
    top, rows, columns = len(unary) - 1, *levels.shape
    total = 0.0
    for row in range(rows):
        for column in range(columns):
            level = levels[row, column]
            total += unary[level, row, column]
            if row + 1 < rows:
                total += below[row, column] * ((level - levels[row + 1, column]) / top) ** 2
            if column + 1 < columns:
                total += right[row, column] * ((level - levels[row, column + 1]) / top) ** 2
    return total


def problem(count, levels, rows, columns, *, seed=0):
    draw = np.random.default_rng(seed)
    unary = draw.normal(size=(count, levels, rows, columns))
    return unary, draw.random((count, rows - 1, columns)) * 2, draw.random((count, rows, columns - 1)) * 2


@pytest.mark.parametrize(
    ("levels", "rows", "columns"), [(2, 2, 2), (2, 3, 3), (2, 2, 4), (3, 2, 2), (3, 2, 3), (4, 2, 2), (5, 1, 3)]
)
def test_the_cut_finds_the_cheapest_of_all_masks(levels, rows, columns):
    unary, below, right = problem(20, levels, rows, columns)
    found = cheapest_levels(unary, below, right)
    assert np.allclose(
        level_energy(found, unary, below, right),
        [slow_energy(*each) for each in zip(found, unary, below, right, strict=True)],
    )
    masks = [
        np.array(each).reshape(rows, columns) for each in itertools.product(range(levels), repeat=rows * columns)
    ]
    for i in range(20):
        energies = [slow_energy(mask, unary[i], below[i], right[i]) for mask in masks]
        assert np.array_equal(found[i], masks[int(np.argmin(energies))])
    assert len(np.unique(found)) == levels


def test_each_mask_of_a_batch_is_cut_as_if_it_were_alone():
    unary, below, right = problem(5, 3, 8, 8)
    together = cheapest_levels(unary, below, right)
    for i in range(5):
        assert np.array_equal(
            cheapest_levels(unary[i : i + 1], below[i : i + 1], right[i : i + 1])[0], together[i]
        )


def test_without_smoothness_each_block_takes_its_cheapest_level_and_with_much_all_take_one():
    unary, below, right = problem(5, 3, 4, 6)
    assert np.array_equal(cheapest_levels(unary, below * 0, right * 0), unary.argmin(axis=1))
    for mask, whole in zip(
        cheapest_levels(unary, below * 0 + 1e3, right * 0 + 1e3), unary.sum(axis=(2, 3)), strict=True
    ):
        assert (mask == whole.argmin()).all()


@pytest.mark.parametrize(
    ("size", "blocks", "grid"),
    [((16, 24), 4, (4, 4)), ((16, 24), 16, (16, 12)), ((518, 224), 8, (7, 8)), ((17, 4), 8, (1, 4))],
)
def test_a_grid_has_the_wished_blocks_or_the_next_fewer_that_divide(size, blocks, grid):
    assert block_grid(size, blocks) == grid


def test_block_saliency_is_each_blocks_share():
    saliency = torch.rand(2, 8, 12)
    shares = block_saliency(saliency, (2, 3))
    for image, row, column in itertools.product(range(2), range(2), range(3)):
        block = saliency[image, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        assert shares[image, row, column].item() == pytest.approx((block.sum() / saliency[image].sum()).item())


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_saliency_that_says_nothing_is_even(value):
    saliency = torch.rand(2, 4, 4)
    saliency[0] = value
    shares = block_saliency(saliency, (2, 2))
    assert shares[0].equal(torch.full((2, 2), 0.25))
    assert shares[1].std() > 0


def test_blocks_are_spread_over_their_pixels():
    blocks = torch.arange(6).view(1, 2, 3)
    spread = spread_blocks(blocks, (4, 9))
    for row, column in itertools.product(range(4), range(9)):
        assert spread[0, row, column] == blocks[0, row // 2, column // 3]


def slow_border_cost(one, two, row, column, block, square, down):
    """Mean over the border of |mean of one's last square - mean of two's first|, channel by channel."""
    height, width = square
    costs = []
    for part in range(block[1] // width if down else block[0] // height):
        if down:
            ends, side = (row + 1) * block[0], column * block[1] + part * width
            last, first = one[:, ends - height : ends, side : side + width], two[:, ends : ends + height]
            first = first[:, :, side : side + width]
        else:
            ends, side = (column + 1) * block[1], row * block[0] + part * height
            last = one[:, side : side + height, ends - width : ends]
            first = two[:, side : side + height, ends : ends + width]
        costs.append((last.mean(dim=(1, 2)) - first.mean(dim=(1, 2))).abs().mean())
    return torch.stack(costs).mean().item()


@pytest.mark.parametrize(("neighbourhood", "square"), [(1, (1, 1)), (2, (2, 2)), (3, (2, 3)), (9, (4, 6))])
def test_border_costs_compare_the_pixels_on_both_sides(neighbourhood, square):
    target, source = torch.randn(2, 1, 3, 8, 18)
    below, right = border_costs(target, source, grid=(2, 3), neighbourhood=neighbourhood)
    images = (target[0], source[0])
    for one, two, row, column in itertools.product(range(2), range(2), range(2), range(3)):
        pair = images[one], images[two], row, column, (4, 6), square
        if row < 1:
            assert below[0, one, two, row, column].item() == pytest.approx(slow_border_cost(*pair, True), abs=1e-6)
        if column < 2:
            assert right[0, one, two, row, column].item() == pytest.approx(
                slow_border_cost(*pair, False), abs=1e-6
            )


def test_a_pixel_that_is_not_finite_says_nothing_of_a_border():
    images = torch.randn(1, 3, 4, 4)
    images[0, 0, 0, 0] = torch.nan
    assert all(part.isfinite().all() for part in border_costs(images, images, grid=(2, 2), neighbourhood=2))


def test_split_pair_costs_say_what_every_hard_mask_costs():
    below, right = torch.rand(1, 2, 2, 1, 3), torch.rand(1, 2, 2, 2, 2)
    single, vertical, horizontal = (part[0].numpy() for part in split_pair_costs(below, right))
    unary = np.stack([np.zeros((2, 3)), single])
    differences = []
    for bits in itertools.product(range(2), repeat=6):
        mask = np.array(bits).reshape(2, 3)
        wanted = sum(below[0, mask[0, c], mask[1, c], 0, c].item() for c in range(3))
        wanted += sum(right[0, mask[r, c], mask[r, c + 1], r, c].item() for r in range(2) for c in range(2))
        differences.append(slow_energy(mask, unary, vertical, horizontal) - wanted)
    assert np.allclose(differences, differences[0], atol=1e-6)  # all but a constant


@pytest.mark.parametrize("blocks", [1, (), (2, 1), (2.5,)])
def test_wrong_block_numbers_are_named(blocks):
    with pytest.raises(ValueError, match="blocks is .* at least 2"):
        checked_blocks(blocks)


def test_each_number_of_blocks_is_drawn_as_often():
    generator = torch.Generator().manual_seed(0)
    drawn = [drawn_blocks((2, 4, 8, 16), generator) for _ in range(400)]
    assert all(70 < drawn.count(number) < 130 for number in (2, 4, 8, 16))
    assert drawn_blocks(checked_blocks(6), generator) == 6
