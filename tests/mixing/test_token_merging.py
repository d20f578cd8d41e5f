import math

import pytest
import torch

from attnmix.mixing.token_merging import bipartite_matching, merge_tokens, recover_scores


def cosine(one, two):
    dot = sum(a * b for a, b in zip(one, two, strict=True))
    return dot / math.sqrt(sum(a * a for a in one) * sum(b * b for b in two))


def merged_lists(features, places, merged):
    """One round, on lists: (feature, original places) per token -> the new list, ToMe's order."""
    if merged == 0:
        return features, places  # as in ToMe, where nothing is done
    evens, odds = list(range(0, len(features), 2)), list(range(1, len(features), 2))
    wishes = []
    for even in evens:
        likeness, odd = max((cosine(features[even], features[odd]), -odd) for odd in odds)
        wishes.append((-likeness, even, -odd))
    joining = {even: odd for _, even, odd in sorted(wishes)[:merged]}
    left = [(features[even], places[even]) for even in evens if even not in joining]
    for odd in odds:
        members = [odd, *(even for even, chosen in joining.items() if chosen == odd)]
        weights = [len(places[member]) for member in members]
        mean = [
            sum(w * features[member][d] for w, member in zip(weights, members, strict=True)) / sum(weights)
            for d in range(len(features[odd]))
        ]
        left.append((mean, sorted(place for member in members for place in places[member])))
    return [feature for feature, _ in left], [place for _, place in left]


@pytest.mark.parametrize("count", [2, 7, 12, 25])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("merged", [0, 1, 0.5])
def test_groups_are_those_of_slow_matching(count, rounds, merged):
    merged = int(merged * count) if isinstance(merged, float) else merged
    features = torch.randn(3, count, 5, dtype=torch.float64)
    groups = merge_tokens(features, merged, rounds=rounds)
    for i in range(3):
        listed, places = features[i].tolist(), [[n] for n in range(count)]
        for number in range(rounds):
            now = merged * (number + 1) // rounds - merged * number // rounds
            listed, places = merged_lists(listed, places, min(now, len(listed) // 2))
        wanted = [next(k for k, place in enumerate(places) if n in place) for n in range(count)]
        assert groups[i].tolist() == wanted


def test_a_round_leaves_as_many_tokens_as_it_says():
    group = bipartite_matching(torch.randn(2, 9, 4), 3)
    assert all(sorted(row.unique().tolist()) == list(range(6)) for row in group)


def test_the_same_token_twice_is_merged_first():
    features = torch.eye(6)[None].clone()
    features[0, 2] = 3 * features[0, 5]  # length does not count
    groups = merge_tokens(features, 1, rounds=1)[0]
    assert groups[2] == groups[5]
    assert len(groups.unique()) == 5


def test_of_equals_the_first_are_taken():
    # all pairs are equally alike: the first even token joins the first odd one
    assert bipartite_matching(torch.ones(1, 6, 3), 1)[0].tolist() == [2, 2, 0, 3, 1, 4]


def test_no_round_merges_more_than_half_of_what_is_left():
    assert len(merge_tokens(torch.randn(1, 8, 4), 7, rounds=1).unique()) == 4


def test_features_without_a_number_stay_on_the_grid():
    groups = merge_tokens(torch.full((1, 8, 4), float("nan")), 4, rounds=2)
    assert 0 <= groups.min() <= groups.max() < 8


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_every_token_gets_its_groups_score(how):
    scores = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]])
    groups = torch.tensor([[0, 1, 0, 2, 0]])
    wanted = {"sum": [21.0, 2.0, 21.0, 8.0, 21.0], "mean": [7.0, 2.0, 7.0, 8.0, 7.0]}[how]
    assert recover_scores(scores, groups, how=how)[0].tolist() == wanted


def test_where_nothing_is_merged_scores_stay():
    scores = torch.rand(2, 6)
    groups = merge_tokens(torch.randn(2, 6, 3), 0, rounds=2)
    assert recover_scores(scores, groups).equal(scores)


def test_the_sum_is_what_proportional_attention_gives_tokens_of_one_key():
    query, keys = torch.randn(1, 4), torch.randn(5, 4)
    keys[2] = keys[3] = keys[0]
    attention = (query @ keys.T).softmax(dim=1)
    groups = torch.tensor([[0, 1, 0, 0, 2]])
    merged, sizes = keys[[0, 1, 4]], torch.tensor([3.0, 1.0, 1.0])
    wanted = (query @ merged.T + sizes.log()).softmax(dim=1)
    assert torch.allclose(recover_scores(attention, groups)[0, [0, 1, 4]], wanted[0], atol=1e-6)
