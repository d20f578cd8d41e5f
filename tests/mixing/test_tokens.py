import itertools

import pytest
import torch

from attnmix.mixing import tokens as module
from attnmix.mixing.tokens import TokenSwap, match_partners, swap_random, swap_salient, total_gain


def make_saliency(batch, tokens=6):
    return torch.rand(batch, tokens).softmax(dim=1)


def slow_gain(saliency, i, j, rho):
    return sum(max(float(saliency[j, t]) - float(saliency[i, t]) - rho, 0.0) for t in range(saliency.shape[1]))


def slow_weight(saliency, i, j, mask):
    """Eq. 11."""
    source = sum(float(saliency[j, t]) for t in range(saliency.shape[1]) if mask[t])
    kept = sum(float(saliency[i, t]) for t in range(saliency.shape[1]) if not mask[t])
    return source / (source + kept) if source + kept else 0.0


@pytest.mark.parametrize("chunk", [1, 20, 2**24])
def test_gain_is_summed_over_the_threshold(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    saliency = make_saliency(5)
    gain = total_gain(saliency, rho=0.02)
    wanted = [[slow_gain(saliency, i, j, 0.02) for j in range(5)] for i in range(5)]
    assert torch.allclose(gain, torch.tensor(wanted), atol=1e-6)


@pytest.mark.parametrize(("mixed", "batch"), [(1, 1), (1, 4), (2, 5), (4, 4)])
def test_partners_maximise_the_summed_gain(mixed, batch):
    for _ in range(20):
        gain, easy = torch.rand(batch, batch), torch.randperm(batch) < mixed
        found = match_partners(gain, easy)
        assert found[~easy].equal(torch.arange(batch)[~easy])
        rows, found = gain[easy], found[easy].tolist()
        assert len(set(found)) == mixed
        best = max(
            sum(float(rows[i, j]) for i, j in enumerate(choice))
            for choice in itertools.permutations(range(batch), mixed)
        )
        assert sum(float(rows[i, j]) for i, j in enumerate(found)) == pytest.approx(best)


def test_gains_that_are_no_numbers_count_as_none():
    gain = torch.tensor([[torch.nan, 0.1, 0.3], [0.2, torch.inf, 0.0], [9.0, 9.0, 9.0]])
    assert match_partners(gain, torch.tensor([True, True, False])).tolist() == [2, 0, 2]


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("rho", [0.0, 0.01, 0.05])
def test_mask_and_weight_equal_a_brute_force_for_every_sample(batch, rho):
    for _ in range(10):
        saliency, easy = make_saliency(batch), torch.rand(batch) < 0.7
        swap = swap_salient(saliency, easy, rho=rho)
        for i in range(batch):
            j = int(swap.partner[i])
            # the row of the pair (i, j) and no other
            mask = [
                bool(easy[i]) and float(saliency[j, t]) - float(saliency[i, t]) > rho
                for t in range(saliency.shape[1])
            ]
            assert swap.mask[i].tolist() == mask
            wanted = slow_weight(saliency, i, j, mask)
            assert swap.source_weight[i].item() == pytest.approx(wanted, abs=1e-6)
            assert easy[i] or j == i


def test_tokens_move_at_their_place_and_prefix_tokens_stay():
    tokens = torch.arange(3.0)[:, None, None] * 100 + torch.arange(6.0)[None, :, None].expand(3, 6, 2)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 1] = mask[0, 3] = mask[1, 0] = True
    swap = TokenSwap(torch.tensor([1, 0, 2]), mask, torch.zeros(3))
    before = tokens.clone()
    mixed = swap.apply(tokens)  # two prefix tokens
    assert mixed[:, :, 0].tolist() == [
        [0, 1, 2, 103, 4, 105],
        [100, 101, 2, 103, 104, 105],  # sample 0's token as it was before it was mixed itself
        [200, 201, 202, 203, 204, 205],
    ]
    assert tokens.equal(before)


def test_tokens_on_a_grid_are_swapped_row_by_row():
    tokens = torch.randn(2, 2, 3, 4)
    swap = TokenSwap(torch.tensor([1, 0]), torch.rand(2, 6) < 0.5, torch.zeros(2))
    assert swap.apply(tokens).flatten(1, 2).equal(swap.apply(tokens.flatten(1, 2)))


def test_gradient_reaches_both_sides():
    tokens = torch.randn(2, 5, 3, requires_grad=True)
    mask = torch.tensor([[True, False, True, False], [False] * 4])
    TokenSwap(torch.tensor([1, 1]), mask, torch.zeros(2)).apply(tokens)[0].sum().backward()
    assert tokens.grad[0, :, 0].tolist() == [1, 0, 1, 0, 1]
    assert tokens.grad[1, :, 0].tolist() == [0, 1, 0, 1, 0]


def test_labels_are_mixed_as_the_saliency_says():
    saliency = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    swap = swap_salient(saliency, torch.tensor([True, False]), rho=0.0)
    assert swap.partner.tolist() == [1, 1]
    weight = 0.9 / (0.9 + 0.7)
    assert torch.allclose(swap.relabel(torch.eye(2)), torch.tensor([[1 - weight, weight], [0.0, 1.0]]))


@pytest.mark.parametrize(
    ("saliency", "easy", "rho"),
    [
        (torch.rand(4, 5), torch.zeros(4, dtype=torch.bool), 0.0),  # none is easy
        (torch.rand(4, 5), torch.ones(4, dtype=torch.bool), float("inf")),
        (torch.rand(1, 5).expand(4, 5), torch.ones(4, dtype=torch.bool), 0.0),
        (torch.zeros(4, 5), torch.ones(4, dtype=torch.bool), 0.0),
        (torch.full((4, 5), torch.nan), torch.ones(4, dtype=torch.bool), 0.0),
    ],
    ids=["none easy", "rho infinite", "all alike", "no saliency", "not a number"],
)
def test_nothing_to_swap_is_the_identity_to_the_bit(saliency, easy, rho):
    tokens, target = torch.randn(4, 6, 3), torch.rand(4, 3).softmax(1)
    for swap in (
        swap_salient(saliency, easy, rho=rho),
        swap_random(saliency, easy, rho=rho, generator=torch.Generator()),
    ):
        assert swap.apply(tokens).equal(tokens)
        assert swap.relabel(target).equal(target)


def test_one_sample_without_numbers_leaves_the_others_alone():
    saliency = make_saliency(4)
    saliency[3] = 0.0  # nobody's partner
    clean = swap_salient(saliency, torch.tensor([True, True, False, False]), rho=0.01)
    saliency[3] = torch.nan
    swap = swap_salient(saliency, torch.tensor([True, True, False, False]), rho=0.01)
    assert swap.source_weight.isfinite().all()
    assert 3 not in clean.partner[:2].tolist()
    assert swap.mask.equal(clean.mask)


def test_the_random_baseline_swaps_as_many_tokens_as_would_be_salient_on_average():
    generator, saliency = torch.Generator().manual_seed(0), make_saliency(6, 40)
    easy = torch.tensor([True, True, False, True, True, True])
    partners, places = set(), torch.zeros(40)
    for _ in range(200):
        swap = swap_random(saliency, easy, rho=0.001, generator=generator)
        salient = [
            sum(float(saliency[j, t] - saliency[i, t]) > 0.001 for t in range(40))
            for i, j in enumerate(swap.partner.tolist())
            if easy[i]
        ]
        count = round(sum(salient) / len(salient))
        mixed = swap.partner != torch.arange(6)
        assert set(swap.mask.sum(dim=1).tolist()) <= {0, count}
        assert swap.mask.any(dim=1).equal(mixed & (count > 0))
        assert not mixed[2]
        others = swap.partner[easy].tolist()
        assert len(set(others)) == len(others)
        partners.add(tuple(others))
        places += swap.mask.sum(dim=0)
        for i in range(6):
            wanted = slow_weight(saliency, i, int(swap.partner[i]), swap.mask[i])
            assert swap.source_weight[i].item() == pytest.approx(wanted, abs=1e-6)
    assert len(partners) > 100
    assert places.min() > 0.5 * places.mean()


def test_the_random_baseline_depends_on_its_generator_alone():
    saliency, easy = make_saliency(5), torch.ones(5, dtype=torch.bool)
    state = torch.get_rng_state()
    first, second, other = (
        swap_random(saliency, easy, rho=0.0, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert first.mask.equal(second.mask)
    assert not first.mask.equal(other.mask)
    assert torch.get_rng_state().equal(state)
