import pytest
import torch

from attnmix.evaluation.exam import image_generator
from attnmix.evaluation.patches import (
    drop_patches,
    first_patches,
    patch_order,
    piece_size,
    random_orders,
    shuffle_patches,
)


def blocks_of(image, rows, columns):
    height, width = image.shape[1] // rows, image.shape[2] // columns
    return [
        image[:, r * height : (r + 1) * height, c * width : (c + 1) * width]
        for r in range(rows)
        for c in range(columns)
    ]


def test_dropped_patches_are_black_and_others_as_they_were():
    pixels = torch.rand(3, 2, 6, 8) + 0.1
    dropped = torch.rand(3, 12) < 0.4
    found = drop_patches(pixels, dropped, grid=(3, 4))
    for image, before, mask in zip(found, pixels, dropped, strict=True):
        for block, old, gone in zip(blocks_of(image, 3, 4), blocks_of(before, 3, 4), mask.tolist(), strict=True):
            assert block.equal(torch.zeros_like(old) if gone else old)


def test_a_grid_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ValueError, match="grid of 4x3 does not divide images of 8x8 pixels"):
        drop_patches(torch.rand(1, 3, 8, 8), torch.zeros(1, 12, dtype=torch.bool), grid=(4, 3))
    with pytest.raises(ValueError, match="grid of 3x3 does not divide images of 9x8 pixels"):
        shuffle_patches(torch.rand(1, 3, 9, 8), torch.arange(9)[None], pieces=3)
    assert piece_size((9, 8), (3, 4)) == (3, 2)


def test_a_mask_or_permutation_of_another_grid_is_refused():
    with pytest.raises(ValueError, match="mask of 8 patches for a grid of 4x4"):
        drop_patches(torch.rand(1, 3, 8, 8), torch.zeros(1, 8, dtype=torch.bool), grid=(4, 4))
    with pytest.raises(ValueError, match="permutation of 9 blocks for 2x2 pieces"):
        shuffle_patches(torch.rand(1, 3, 8, 8), torch.arange(9)[None], pieces=2)


def test_the_most_salient_come_first_and_equal_ones_keep_their_order():
    saliency = torch.tensor([[0.1, 0.4, 0.2, 0.4], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 2.0, 0.5]])
    assert patch_order(saliency).tolist() == [[1, 3, 2, 0], [0, 1, 2, 3], [0, 2, 1, 3]]


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_the_first_patches_of_each_order_are_exactly_so_many(count):
    order = torch.stack([torch.randperm(5) for _ in range(7)])
    mask = first_patches(order, count)
    assert mask.sum(dim=1).tolist() == [count] * 7
    for row, places in zip(mask, order, strict=True):
        assert set(row.nonzero().flatten().tolist()) == set(places[:count].tolist())


def test_each_image_has_its_own_order_whatever_the_batch():
    together = random_orders(torch.tensor([4, 9, 2]), 30, seed=5)
    assert [sorted(row) for row in together.tolist()] == [list(range(30))] * 3
    assert len({tuple(row) for row in together.tolist()}) == 3
    assert random_orders(torch.tensor([2, 4]), 30, seed=5).equal(together[[2, 0]])
    assert torch.randperm(30, generator=image_generator(5, 9, stream=30)).equal(together[1])
    assert not random_orders(torch.tensor([4, 9, 2]), 30, seed=6).equal(together)


def test_shuffling_moves_whole_blocks_to_the_places_asked_for():
    images = torch.arange(2 * 3 * 6 * 9).float().reshape(2, 3, 6, 9)
    permutation = random_orders(torch.arange(2), 9, seed=0)
    found = shuffle_patches(images, permutation, pieces=3)
    assert not found.equal(images)
    assert found.flatten(1).sort().values.equal(images.flatten(1).sort().values)
    for image, before, order in zip(found, images, permutation.tolist(), strict=True):
        old = blocks_of(before, 3, 3)
        for place, block in enumerate(blocks_of(image, 3, 3)):
            assert block.equal(old[order[place]])


def test_the_inverse_permutation_restores_the_images():
    images, permutation = torch.rand(4, 3, 8, 12), random_orders(torch.arange(4), 16, seed=1)
    there = shuffle_patches(images, permutation, pieces=4)
    assert shuffle_patches(there, permutation.argsort(dim=1), pieces=4).equal(images)


def test_one_piece_is_the_image_itself():
    images = torch.rand(2, 3, 5, 7)
    assert shuffle_patches(images, torch.zeros(2, 1, dtype=torch.int64), pieces=1).equal(images)
