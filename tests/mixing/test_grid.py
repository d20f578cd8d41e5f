import torch

from attnmix.mixing import boxes_to_mask, fold_tokens, grid_share, mask_to_grid


def test_a_patch_aligned_box_gives_the_same_token_mask_both_ways():
    mask = boxes_to_mask(torch.tensor([[4, 8, 8, 12]]), (16, 24))
    nearest, area = (mask_to_grid(mask, (4, 6), how=how) for how in ("nearest", "area"))
    assert nearest.equal(area)
    assert fold_tokens(nearest, (4, 6))[0].bool().equal(boxes_to_mask(torch.tensor([[1, 2, 2, 3]]), (4, 6))[0])


def test_area_is_the_exact_share_where_nearest_takes_one_pixel():
    mask = boxes_to_mask(torch.tensor([[1, 1, 4, 4]]), (8, 8))
    area = fold_tokens(mask_to_grid(mask, (2, 2), how="area"), (2, 2))[0]
    assert area.tolist() == [[9 / 16, 3 / 16], [3 / 16, 1 / 16]]
    nearest = fold_tokens(mask_to_grid(mask, (2, 2), how="nearest"), (2, 2))[0]
    assert nearest.tolist() == [[0, 0], [0, 1]]


def test_grid_share_of_no_scores_is_the_masks_own():
    mask = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert grid_share(torch.zeros(2, 4), mask).tolist() == [0.5, 1.0]


def test_grid_share_is_the_part_of_the_scores_under_the_mask():
    scores = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert grid_share(scores, torch.tensor([[1.0, 0.0, 0.5, 0.0]])).tolist() == [0.25]
    assert grid_share(scores, torch.ones(1, 4)).tolist() == [1.0]
    assert grid_share(scores, torch.zeros(1, 4)).tolist() == [0.0]
