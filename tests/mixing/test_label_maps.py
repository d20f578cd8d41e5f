import math

import pytest
import torch

from attnmix.mixing import LabelMaps, class_labels
from attnmix.mixing.label_maps import class_activation, dense_scores, pooled_distribution, resized_scores


def maps_of(scores, k):
    """The k best classes of every cell, as they would come from disk."""
    best = scores.topk(k, dim=1)
    return LabelMaps(torch.zeros(len(scores), dtype=torch.long), best.indices, best.values)


def test_all_classes_of_a_cell_come_back_as_they_were():
    scores = torch.randn(2, 5, 3, 4)
    assert dense_scores(maps_of(scores, 5), 5).equal(scores)


def test_unknown_classes_are_average_but_never_better_than_known_ones():
    classes, scores = torch.tensor([3, 1])[None, :, None, None], torch.tensor([4.0, 0.5])[None, :, None, None]
    dense = dense_scores(LabelMaps(torch.zeros(1), classes, scores), 4)
    assert dense.flatten().tolist() == [0.0, 0.5, 0.0, 4.0]
    worse = dense_scores(LabelMaps(torch.zeros(1), classes, scores - 3), 4)
    assert worse.flatten().tolist() == [-2.5, -2.5, -2.5, 1.0]


def test_scores_kept_in_half_precision_are_computed_with_in_single():
    maps = maps_of(torch.randn(2, 5, 3, 4), 2)
    assert dense_scores(maps._replace(scores=maps.scores.half()), 5).dtype == torch.float32


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_class_that_is_none_is_named(wrong):
    maps = maps_of(torch.randn(2, 5, 3, 4), 2)
    maps.classes[1, 0, 2, 3] = wrong
    with pytest.raises(ValueError, match=f"label maps hold class {wrong}, outside 0..4"):
        dense_scores(maps, 5)


def test_coarser_cells_are_means_and_finer_ones_lie_between():
    scores = torch.randn(2, 3, 4, 6)
    assert resized_scores(scores, (4, 6)) is scores
    flat = resized_scores(torch.full((1, 1, 4, 6), 2.5), (3, 9))
    assert torch.allclose(flat, torch.full((1, 1, 3, 9), 2.5))
    ramp = torch.arange(4.0)[None, None, :, None].expand(1, 1, 4, 1)
    assert resized_scores(ramp, (8, 1)).flatten().tolist() == pytest.approx(
        [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]
    )
    coarse = resized_scores(ramp, (2, 1)).flatten()  # every old cell counts, not one in two
    assert coarse.tolist() == pytest.approx([0.5, 2.5])
    crossed = resized_scores(torch.arange(8.0).view(1, 1, 4, 2), (2, 4))  # coarser one way, finer the other
    assert crossed[0, 0].tolist() == [[1.0, 1.25, 1.75, 2.0], [5.0, 5.25, 5.75, 6.0]]


def test_an_image_holds_the_softmax_of_its_mean_logits():
    scores = torch.randn(2, 3, 2, 2)
    found = pooled_distribution(scores)
    for i in range(2):
        means = [sum(scores[i, c].flatten().tolist()) / 4 for c in range(3)]
        total = sum(math.exp(mean) for mean in means)
        assert found[i].tolist() == pytest.approx([math.exp(mean) / total for mean in means], abs=1e-6)


def test_activation_is_the_labels_own_positive_score():
    scores = torch.tensor([[[2.0, -1.0], [6.0, 0.0]], [[-9.0, 1.0], [1.0, 1.0]]]).flip(1)[None]  # [1, 2, 2, 2]
    one = class_activation(scores, torch.tensor([[1.0, 0.0]]), (2, 2))
    assert one[0].tolist() == [[0.75, 0.0], [0.25, 0.0]]
    other = class_activation(scores, torch.tensor([[0.0, 1.0]]), (2, 2))
    assert torch.allclose(other[0], torch.tensor([[1.0, 1.0], [0.0, 1.0]]) / 3)
    both = class_activation(scores, torch.tensor([[0.5, 0.5]]), (2, 2))  # 3.5, 0.5, 1, 0.5
    assert torch.allclose(both[0], torch.tensor([[3.5, 0.5], [1.0, 0.5]]) / 5.5)


def test_activation_that_says_nothing_is_alike_everywhere():
    found = class_activation(torch.full((1, 2, 3, 3), -1.0), torch.tensor([[1.0, 0.0]]), (2, 4))
    assert torch.allclose(found, torch.full((1, 2, 4), 1 / 8))


def test_maps_move_as_one_and_give_their_labels():
    maps = maps_of(torch.randn(2, 5, 3, 4), 2)
    assert all(part.device.type == "meta" for part in maps.to("meta"))
    assert class_labels(maps) is maps.labels
    assert class_labels(maps.labels) is maps.labels
