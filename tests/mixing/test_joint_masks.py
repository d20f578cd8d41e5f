import dataclasses
import itertools

import numpy as np
import pytest

from attnmix.mixing.joint_masks import (
    JointCost,
    best_partner,
    choose_together,
    compatibility,
    over_threshold,
    same_pair_charge,
    usage,
)


def make_cost(count=3, rows=2, columns=2, *, seed=0, **options):
    draw = np.random.default_rng(seed)
    saliency = draw.random((count, rows, columns)) ** 3
    saliency /= saliency.sum(axis=(1, 2), keepdims=True)
    places = draw.random((count, 2))
    settings = {"top": 1, "beta": 0.5, "gamma": 0.3, "eta": 0.2, "tau": 0.0, **options}
    return JointCost(
        saliency, -np.log(draw.dirichlet(np.full(count, 2.0))), compatibility(places, 0.2), **settings
    )


def slow_outputs(cost, levels, partners):
    """z[j, k, i], output j's share of image i in block k."""
    count, blocks = len(partners), cost.saliency[0].size
    z = np.zeros((count, blocks, count))
    for j, (mask, partner) in enumerate(zip(levels, partners, strict=True)):
        for k, level in enumerate(mask.flatten()):
            z[j, k, j] += 1 - level / cost.top
            z[j, k, partner] += level / cost.top
    return z


def slow_total(cost, levels, partners):
    """The paper's objective without its threshold, of any outputs, written with one-hot vectors per block."""
    count, rows, columns = cost.saliency.shape
    blocks, z = rows * columns, slow_outputs(cost, levels, partners)
    total = 0.0
    for j, k, i in itertools.product(range(count), range(blocks), range(count)):
        total += z[j, k, i] * (cost.eta / blocks * cost.scarcity[i] - cost.saliency[i].flatten()[k])
    for j, k in itertools.product(range(count), range(blocks)):
        for neighbour in ([k + 1] if (k + 1) % columns else []) + ([k + columns] if k + columns < blocks else []):
            total += cost.beta / blocks * ((z[j, k] - z[j, neighbour]) ** 2).sum() / 2
    o = z.mean(axis=1)
    for j, other in itertools.permutations(range(count), 2):
        total += cost.gamma * blocks * o[j] @ cost.compatible @ o[other]
    return total


def all_outputs(cost, output):
    """Every partner and mask of an output."""
    count, rows, columns = cost.saliency.shape
    masks = [
        np.array(m).reshape(rows, columns) for m in itertools.product(range(cost.top + 1), repeat=rows * columns)
    ]
    return [(p, mask) for p in range(count) if p != output for mask in masks]


def random_start(cost, seed=0):
    draw, count = np.random.default_rng(seed), len(cost.saliency)
    return draw.integers(cost.top + 1, size=cost.saliency.shape), np.roll(np.arange(count), 1)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3)])
@pytest.mark.parametrize("top", [1, 2])
def test_the_objective_is_the_papers(rows, columns, top):
    for seed in range(5):
        cost = make_cost(4, rows, columns, top=top, seed=seed)
        levels, partners = random_start(cost, seed)
        assert cost.total(levels, partners) == pytest.approx(slow_total(cost, levels, partners))


@pytest.mark.parametrize(("rows", "columns", "top"), [(2, 2, 1), (2, 2, 2), (3, 3, 1)])
@pytest.mark.parametrize("beta", [0.1, 0.9])
def test_an_output_gets_the_best_of_all_partners_and_masks(rows, columns, top, beta):
    found = 0
    for seed in range(8):
        cost = make_cost(7 if rows == 2 else 3, rows, columns, top=top, seed=seed, gamma=0.03, beta=beta)
        levels, partners = random_start(cost, seed)
        held = usage(levels, partners, top)
        partner, mask, energy = best_partner(cost, 0, held[1:].sum(axis=0), np.zeros(len(partners)))

        def with_first(partner, mask, levels=levels, partners=partners, cost=cost):
            return cost.total(np.stack([mask, *levels[1:]]), np.array([partner, *partners[1:]]))

        # without a threshold the modular step is exact: the whole objective is compared
        least = min(with_first(*each) for each in all_outputs(cost, 0))
        unmixed = with_first(1, np.zeros((rows, columns), dtype=int))
        assert energy == pytest.approx(least - unmixed, abs=1e-9)
        if partner >= 0:
            found += 1
            assert with_first(partner, mask) == pytest.approx(least)
    assert found >= 4


def test_no_output_can_be_bettered_alone_in_the_end_and_no_sweep_makes_it_worse():
    for seed in range(6):
        cost = make_cost(3, 2, 2, seed=seed, gamma=0.05, beta=0.1)
        start = random_start(cost, seed)
        sweeps = [cost.total(*choose_together(cost, *start, iterations=n, resolve=False)) for n in range(1, 8)]
        assert all(later <= sooner + 1e-9 for sooner, later in itertools.pairwise([cost.total(*start), *sweeps]))
        levels, partners = choose_together(cost, *start, iterations=20, resolve=False)
        for output in range(3):
            for partner, mask in all_outputs(cost, output):
                other_levels, other_partners = levels.copy(), partners.copy()
                other_levels[output], other_partners[output] = mask, partner
                assert cost.total(other_levels, other_partners) >= sweeps[-1] - 1e-9


def test_sweeps_come_near_the_best_of_all_batches():
    near = []
    for seed in range(6):
        cost = make_cost(3, 1, 2, seed=seed, gamma=0.05, beta=0.1)
        best = min(
            cost.total(np.stack([mask for _, mask in each]), np.array([partner for partner, _ in each]))
            for each in itertools.product(*(all_outputs(cost, output) for output in range(3)))
        )
        found = cost.total(*choose_together(cost, *random_start(cost), iterations=10, resolve=False))
        assert found >= best - 1e-9
        near.append(found <= best + 0.1)
    assert sum(near) >= 5


@pytest.mark.parametrize("law", ["max", "hard"])
def test_an_image_that_others_hold_costs_from_tau_on(law):
    used = np.array([0.2, 0.83, 0.9])
    wanted = {"max": [0.83, 0.83, 0.9], "hard": [0.0, 0.0, 0.9]}[law]
    assert over_threshold(used, 0.83, law).tolist() == wanted
    cost = make_cost(3, tau=0.83, law=law)
    cost = dataclasses.replace(cost, compatible=np.eye(3))
    assert np.allclose(cost.crowding(used), 2 * 0.3 * np.array(wanted))


def test_diversity_spreads_the_images_over_the_outputs():
    def spread(gamma):
        cost = make_cost(8, 2, 2, gamma=gamma, tau=0.83, top=2, beta=0.05, eta=0.0)
        cost.saliency[0] *= 3  # which everybody would like to hold
        return usage(*choose_together(cost, *random_start(cost), iterations=4), 2).sum(axis=0)

    assert spread(0.0)[0] > 3
    assert spread(1.0).max() < 2


def test_compatibility_is_distance_beside_the_identity():
    places = np.array([[0.0, 0.0], [0.5, 0.0], [0.5, 1.0]])
    wanted = np.array([[0, 0.5, 1.5], [0.5, 0, 1.0], [1.5, 1.0, 0]]) * 3 / 6
    assert np.allclose(compatibility(places, 0.25), 0.75 * np.eye(3) + 0.25 * wanted)
    assert np.array_equal(compatibility(np.ones((3, 2)), 0.25), np.eye(3))


def test_the_later_of_two_outputs_of_the_same_pair_is_charged():
    levels = np.ones((5, 2, 2), dtype=int)
    partners = np.array([1, 0, 3, 2, 0])
    levels[2] = 0  # unmixed: no pair
    wanted = np.zeros((5, 5))
    wanted[1, 0] = 0.5
    assert np.array_equal(same_pair_charge(levels, partners, 0.5), wanted)


def test_a_repeated_pair_is_resolved():
    saliency = np.zeros((3, 2, 2))
    saliency[0, 0], saliency[1, 1], saliency[2, 1] = 0.5, 0.5, 0.49
    cost = JointCost(saliency, np.zeros(3), np.eye(3), top=1, beta=0.0, gamma=2.0, eta=0.0, tau=0.99)
    start = np.array([[[0, 0], [1, 1]], [[1, 1], [0, 0]], [[0, 0], [0, 0]]]), np.array([1, 0, 0])
    kept = choose_together(cost, *start, iterations=4, resolve=False)
    resolved = choose_together(cost, *start, iterations=4)
    assert kept[1][:2].tolist() == [1, 0]
    assert kept[0][1].any()
    assert not resolved[0][1].any()


@pytest.mark.parametrize(("saliency", "resolved"), [(0.45, True), (0.55, False)])
def test_a_repeated_pair_costs_gamma_over_the_number_of_blocks_in_each_block(saliency, resolved):
    # both images have all in a row of their own, so that both outputs would like to hold these two rows
    maps, rows = np.zeros((2, 2, 2)), np.array([[1, 1], [0, 0]])
    maps[0, 0] = maps[1, 1] = saliency
    cost = JointCost(maps, np.zeros(2), np.eye(2), top=1, beta=0.0, gamma=2.0, eta=0.0, tau=1.0)  # 2 / 4 blocks
    start = np.stack([rows[::-1], rows]), np.array([1, 0])
    levels, _ = choose_together(cost, *start, iterations=4)
    assert np.array_equal(levels[0], rows[::-1])
    assert np.array_equal(levels[1], np.zeros((2, 2)) if resolved else rows)


def test_one_image_stays_itself():
    cost = make_cost(1)
    levels, partners = choose_together(cost, np.ones((1, 2, 2), dtype=int), np.zeros(1, dtype=int), iterations=4)
    assert not levels.any()
    assert partners.tolist() == [0]
