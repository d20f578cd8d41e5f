import pytest
import torch

from attnmix.mixing.grid_masks import PasteCells, cell_means, cell_numbers, cells_to_mask, chosen_cells


@pytest.mark.parametrize(("side", "cells"), [(16, 4), (17, 4), (24, 7), (5, 5), (9, 1), (224, 14)])
def test_cells_begin_at_whole_shares_of_the_side(side, cells):
    wanted = []
    for cell in range(cells):
        wanted += [cell] * ((cell + 1) * side // cells - cell * side // cells)
    assert cell_numbers(side, cells).tolist() == wanted
    counts = torch.bincount(cell_numbers(side, cells))
    assert counts.max() - counts.min() <= 1


def test_more_cells_than_pixels_are_refused():
    with pytest.raises(ValueError, match="a grid of 6 cells does not fit a side of 5 pixels"):
        cell_numbers(5, 6)


def test_a_mask_is_its_cells_spelled_out():
    cells = torch.rand(3, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    mask = cells_to_mask(cells, (10, 14))
    for image in range(3):
        for row in range(10):
            for column in range(14):
                i = next(i for i in range(3) if row < (i + 1) * 10 // 3)
                j = next(j for j in range(4) if column < (j + 1) * 14 // 4)
                assert mask[image, row, column] == cells[image, i, j]


def test_count_takes_as_many_cells_as_make_up_the_share_at_random():
    share = torch.tensor([0.0, 0.3, 0.5, 1.0])
    uniform = torch.rand(4, 3, 4, generator=torch.Generator().manual_seed(0))
    cells = chosen_cells(share, uniform)
    for number, wanted in enumerate([0, 4, 6, 12]):
        ranked = uniform[number].flatten().sort().values
        assert cells[number].equal(uniform[number] < (ranked[wanted] if wanted < 12 else 2.0))


def test_bernoulli_takes_each_cell_with_the_share_as_its_chance():
    share = torch.full((500,), 0.3)
    uniform = torch.rand(500, 3, 4, generator=torch.Generator().manual_seed(0))
    cells = chosen_cells(share, uniform, law="bernoulli")
    assert cells.float().mean(dim=0).flatten().tolist() == pytest.approx([0.3] * 12, abs=0.08)
    assert cells.flatten(1).sum(dim=1).unique().numel() > 4


@pytest.mark.parametrize("grid", [(2, 3), (4, 4), (3, 5), (1, 1), (16, 24)])
def test_a_cells_mean_is_the_mean_over_its_pixels_of_their_tokens(grid):
    tokens = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    means = cell_means(tokens, grid, image_size=(16, 24))
    for i in range(grid[0]):
        for j in range(grid[1]):
            total, count = torch.zeros(2, 5, dtype=torch.float64), 0
            for row in range(i * 16 // grid[0], (i + 1) * 16 // grid[0]):
                for column in range(j * 24 // grid[1], (j + 1) * 24 // grid[1]):
                    total += tokens[:, row // 4, column // 4]
                    count += 1
            assert torch.allclose(means[:, i, j], total / count)


def test_pasted_cells_and_their_exact_share():
    cells = torch.rand(4, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    images = torch.randn(4, 3, 10, 14)
    mixed = PasteCells(torch.tensor([3, 2, 1, 0]), cells).apply(images)
    mask = cells_to_mask(cells, (10, 14))
    assert mixed.source_mask.equal(mask)
    assert mixed.images.equal(torch.where(mask[:, None], images.flip(0), images))
    assert mixed.source_weight.tolist() == pytest.approx([int(one.sum()) / 140 for one in mask])
