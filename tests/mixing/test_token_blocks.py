import pytest
import torch

from attnmix.mixing.patch_masks import cells_to_pixels
from attnmix.mixing.token_blocks import block_mask, scattered_mask

GRID = (14, 14)


def blocks(share, *, seed=0, grid=GRID, min_block=14 / 196, min_aspect=0.3):
    generator = torch.Generator().manual_seed(seed)
    return block_mask(share, grid=grid, min_block=min_block, min_aspect=min_aspect, generator=generator)


@pytest.mark.parametrize("grid", [(14, 14), (4, 6), (1, 5), (2, 2)])
def test_the_wished_share_is_covered_and_never_more(grid):
    tokens = grid[0] * grid[1]
    short = []
    for seed in range(100):
        share = seed / 99
        wanted = max(round(share * tokens), 1)
        count = int(blocks(share, seed=seed, grid=grid).sum())
        assert count <= wanted
        short.append(wanted - count)
    assert sum(short) / len(short) < 0.02 * tokens + 0.2


def test_all_of_a_grid_can_be_covered():
    assert blocks(1.0, min_block=1.0, min_aspect=1.0).all()


def sides(mask):
    rows, columns = (mask.any(dim=axis).nonzero().flatten() for axis in (1, 0))
    return int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1


def test_a_block_as_large_as_the_share_is_a_single_box():
    for seed in range(50):
        mask = blocks(0.2, seed=seed, min_block=0.2)
        height, width = sides(mask)
        if int(mask.sum()) == height * width:  # what rounding left open is covered by others
            assert 0.25 <= height / width <= 1 / 0.25


def test_smaller_blocks_are_more_scattered():
    def border(mask):
        return int((mask[1:] != mask[:-1]).sum() + (mask[:, 1:] != mask[:, :-1]).sum())

    small = sum(border(blocks(0.5, seed=seed, min_block=0.0)) for seed in range(40))
    large = sum(border(blocks(0.5, seed=seed, min_block=0.4)) for seed in range(40))
    assert small > 1.1 * large


def test_aspect_one_draws_squares():
    ratios = []
    for seed in range(40):
        height, width = sides(blocks(0.1836, seed=seed, min_block=0.1836, min_aspect=1.0))  # 36 tokens
        ratios.append(height == width == 6)
    assert all(ratios)
    assert len({sides(blocks(0.1836, seed=seed, min_block=0.1836)) for seed in range(40)}) > 5


def test_blocks_lie_everywhere_alike():
    mean = torch.stack([blocks(0.5, seed=seed).float() for seed in range(300)]).mean(dim=0)
    assert (mean - mean.flip(0)).abs().max() < 0.15
    assert (mean - mean.flip(1)).abs().max() < 0.15
    assert mean[0].mean() > 0.2


def test_single_tokens_are_counted_exactly():
    generator = torch.Generator().manual_seed(0)
    for share, count in ((0.0, 1), (0.5, 12), (1.0, 24)):
        assert int(scattered_mask(share, grid=(4, 6), generator=generator).sum()) == count


def test_tokens_become_patches():
    mask = torch.tensor([[[True, False, True]]])
    assert cells_to_pixels(mask, (2, 3), (2, 9))[0].int().tolist() == [[1, 1, 1, 0, 0, 0, 1, 1, 1]] * 2
