import torch

from attnmix.mixing.patch_masks import cell_counts, cells_to_pixels, top_cells, whole_cells


def test_cells_cover_the_image_and_the_last_are_cut_off():
    assert cell_counts((16, 24), (8, 8)) == (2, 3)
    assert cell_counts((16, 24), (8, 16)) == (2, 2)
    cells = torch.tensor([[[True, False], [False, True]]])
    pixels = cells_to_pixels(cells, (2, 4), (3, 6))
    wanted = [[i // 2 == j // 4 for j in range(6)] for i in range(3)]
    assert pixels[0].tolist() == wanted


def test_the_target_keeps_the_cell_that_would_be_divided():
    share = torch.tensor([0.0, 0.24, 0.25, 0.99, 1.0])
    assert whole_cells(share, 4).tolist() == [0, 0, 0.25, 0.75, 1]


def test_the_best_are_taken_and_of_equals_the_first():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [0.0, 1.0, 2.0, 3.0]])
    best = top_cells(scores, torch.tensor([2, 3, 0]))
    assert best.int().tolist() == [[0, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
