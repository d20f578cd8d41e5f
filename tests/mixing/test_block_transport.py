import itertools

import numpy as np
import pytest
import torch

from attnmix.mixing import block_transport
from attnmix.mixing.block_transport import (
    PasteBlocks,
    masked_transport,
    move_costs,
    take_blocks,
    transport_in_chunks,
)


def slow_transport(cost, rounds):
    """Puzzle Mix's Algorithm 1 for one image, with whole matrices: who wins each place, -1 for nobody."""
    cost, count = cost.astype(np.float64).copy(), len(cost)
    won = None
    for _ in range(rounds):
        plan = np.zeros_like(cost)
        for block in range(count):
            plan[block, cost[block].argmin()] = 1
        conflict = cost * plan + 1e4 * (1 - plan)
        win = np.zeros_like(cost)
        for place in range(count):
            win[conflict[:, place].argmin(), place] = 1
        win *= plan
        lose = (1 - win) * plan
        cost = cost + 1e4 * lose
        won = win
        if not lose.any():
            break
    return np.where(won.any(axis=0), won.argmax(axis=0), -1), not lose.any()


def random_problem(rows, columns, count=6):
    saliency = torch.rand(count, rows, columns) ** 4
    saliency /= saliency.sum(dim=(1, 2), keepdim=True)
    return saliency, torch.rand(count, rows, columns) > 0.5


def test_move_costs_are_distance_less_the_saliency_shown():
    saliency, shown = random_problem(2, 4, count=1)
    cost = move_costs(saliency, shown, distance_weight=0.8)
    for block, place in itertools.product(range(8), range(8)):
        squared = (block // 4 - place // 4) ** 2 + (block % 4 - place % 4) ** 2
        wanted = 0.8 * squared / 9 - saliency[0].flatten()[block].item() * bool(shown[0].flatten()[place])
        assert cost[0, block, place].item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("rounds", [1, 2, 4, 64])
def test_transport_is_algorithm_1(rounds):
    saliency, shown = random_problem(4, 4)
    cost = move_costs(saliency, shown, distance_weight=0.2)
    before = cost.clone()
    places = masked_transport(cost, rounds=rounds)
    for i in range(len(cost)):
        wanted, settled = slow_transport(before[i].numpy(), rounds)
        assert settled or rounds < 64
        assert places[i].tolist() == [own if place < 0 else place for own, place in enumerate(wanted)]
    if rounds == 64:
        assert places.sort(dim=1).values.equal(torch.arange(16).expand(6, -1))  # everybody has a place
        assert (places != torch.arange(16)).any()


@pytest.mark.parametrize("chunk", [1, 256, 600, 10**6])
def test_in_chunks_blocks_go_where_they_would(monkeypatch, chunk):
    saliency, shown = random_problem(4, 4, count=7)
    wanted = masked_transport(move_costs(saliency, shown, distance_weight=0.2), rounds=4)
    seen = []
    monkeypatch.setattr(block_transport, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(
        block_transport,
        "move_costs",
        lambda part, *rest, **kw: seen.append(len(part)) or move_costs(part, *rest, **kw),
    )
    assert transport_in_chunks(saliency, shown, distance_weight=0.2, rounds=4).equal(wanted)
    assert seen == {1: [1] * 7, 256: [1] * 7, 600: [2, 2, 2, 1], 10**6: [7]}[chunk]


def test_every_place_shown_is_filled_and_keeps_at_least_its_saliency():
    saliency, shown = random_problem(8, 8)
    places = masked_transport(move_costs(saliency, shown, distance_weight=0.1), rounds=8)
    there = saliency.flatten(1).gather(1, places)
    for i in range(6):
        moved_in = places[i][shown[i].flatten()]
        assert len(moved_in.unique()) == len(moved_in)  # nobody is shown twice
    assert (there >= saliency.flatten(1))[shown.flatten(1)].all()
    assert (there > saliency.flatten(1))[shown.flatten(1)].any()


def test_blocks_that_would_not_gain_stay():
    saliency, shown = random_problem(4, 4)
    places = masked_transport(move_costs(saliency, shown, distance_weight=100.0), rounds=4)
    assert places.equal(torch.arange(16).expand(6, -1))
    places = masked_transport(move_costs(saliency, shown & False, distance_weight=0.1), rounds=4)
    assert places.equal(torch.arange(16).expand(6, -1))


def test_take_blocks_puts_every_block_in_its_place():
    images, index = torch.randn(3, 2, 4, 9), torch.tensor([2, 0, 1])
    places = torch.stack([torch.randperm(6) for _ in range(3)])
    moved = take_blocks(images, index, places, (2, 3))
    for i, place in itertools.product(range(3), range(6)):
        came = places[i, place].item()
        here, there = (
            (slice(2 * (p // 3), 2 * (p // 3) + 2), slice(3 * (p % 3), 3 * (p % 3) + 3)) for p in (place, came)
        )
        assert moved[i][:, here[0], here[1]].equal(images[index[i]][:, there[0], there[1]])


@pytest.mark.parametrize("soft", [False, True])
def test_masks_move_as_the_pixels_do(soft):
    images = torch.randn(2, 3, 4, 6)
    mask = torch.rand(2, 4, 6) if soft else torch.rand(2, 4, 6) > 0.5
    index, places = torch.tensor([1, 0]), [torch.stack([torch.randperm(6) for _ in range(2)]) for _ in range(2)]
    draw = PasteBlocks(index, mask, places[0], places[1], (2, 3))
    mixed = draw.apply(images)
    alone = draw.apply(images[:, :1])
    assert alone.images.equal(mixed.images[:, :1])
    target = take_blocks(images, torch.arange(2), places[0], (2, 3))
    source = take_blocks(images, index, places[1], (2, 3))
    share = mask.float()[:, None]
    assert torch.allclose(mixed.images, share * source + (1 - share) * target, atol=1e-6)
    assert mixed.source_weight.allclose(mask.float().mean(dim=(1, 2)))
    assert (mixed.source_mask is None) == soft
    assert (mixed.source_share is None) != soft
