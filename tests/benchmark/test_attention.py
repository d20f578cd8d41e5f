import math

import numpy as np
import pytest
import torch

from attnmix.attention.call import FusedCall
from attnmix.attention.quantities import probabilities
from attnmix.benchmark import attention
from attnmix.benchmark.attention import (
    CLASS,
    FUSED,
    IMAGE,
    LABELS,
    QUANTITIES,
    WHOLE,
    attention_actions,
    growth,
    measure_attention,
    timed_rounds,
    whole_bytes,
)
from attnmix.benchmark.memory import peak_allocated

CPU = torch.device("cpu")


def call_of(tokens, heads=2, width=8, batch=1):
    return torch.randn(3, batch, heads, tokens + 1, width).unbind()


def test_what_is_read_is_what_softmax_whole_gives():
    actions = attention_actions(*call_of(24, batch=2))
    assert tuple(actions) == QUANTITIES
    for name, expected in zip((CLASS, IMAGE, LABELS), actions[WHOLE](), strict=True):
        torch.testing.assert_close(actions[name](), expected)


@pytest.mark.parametrize("name", [CLASS, IMAGE, LABELS])
def test_memory_of_reading_grows_no_faster_than_tokens(name):
    """Four times the tokens, at 1024 of them many chunks of queries already: 4 would be linear, 16 quadratic."""
    small, large = (peak_allocated(attention_actions(*call_of(tokens))[name], CPU) for tokens in (1024, 4096))
    assert large < 4.5 * small


def test_memory_of_the_whole_softmax_grows_with_their_square():
    small, large = (
        peak_allocated(lambda tokens=tokens: probabilities(FusedCall(*call_of(tokens)[:2])), CPU)
        for tokens in (256, 1024)
    )
    assert large / small == pytest.approx(16, rel=0.1)


def test_reading_takes_a_small_part_of_the_whole():
    actions = attention_actions(*call_of(2048))
    whole = peak_allocated(actions[WHOLE], CPU)
    assert whole == pytest.approx(whole_bytes(1, 2, 2049), rel=0.02)
    for name in (CLASS, IMAGE, LABELS):
        assert peak_allocated(actions[name], CPU) < whole / 16


def test_a_cost_for_each_quantity_and_number_of_tokens():
    seen = []
    costs = measure_attention([4, 9], heads=2, width=8, device=CPU, rounds=4, progress=seen.append)
    assert [(cost.tokens, cost.quantity) for cost in costs] == [(n, name) for n in (4, 9) for name in QUANTITIES]
    assert seen == [4, 9]
    assert all(cost.rounds == 4 and cost.peak_bytes > 0 and cost.needed_bytes is None for cost in costs)
    assert all((cost.ratio, cost.low, cost.high) == (1, 1, 1) for cost in costs if cost.quantity == FUSED)
    assert costs[0].as_dict()["quantity"] == FUSED


def test_the_whole_is_left_out_where_it_needs_too_much():
    limit = whole_bytes(1, 2, 5)
    costs = measure_attention([4, 9], heads=2, width=8, device=CPU, rounds=3, max_bytes=limit)
    whole = [cost for cost in costs if cost.quantity == WHOLE]
    assert whole[0].peak_bytes is not None
    assert whole[0].needed_bytes is None
    assert whole[1].seconds is whole[1].ratio is whole[1].peak_bytes is None
    assert whole[1].needed_bytes == whole_bytes(1, 2, 10) == 2 * 4 * 2 * 100
    assert len(costs) == 2 * len(QUANTITIES)


@pytest.mark.parametrize(
    ("option", "shape", "dtype"),
    [
        ({"heads": 3}, (1, 3, 5, 8), torch.float32),
        ({"width": 16}, (1, 2, 5, 16), torch.float32),
        ({"batch_size": 2}, (2, 2, 5, 8), torch.float32),
        ({"dtype": torch.bfloat16}, (1, 2, 5, 8), torch.bfloat16),
    ],
)
def test_options_shape_the_call(monkeypatch, option, shape, dtype):
    seen = []
    made = attention.attention_actions
    monkeypatch.setattr(
        attention, "attention_actions", lambda q, k, v: seen.append((q.shape, v.dtype)) or made(q, k, v)
    )
    measure_attention([4], **({"heads": 2, "width": 8, "device": CPU, "rounds": 3} | option))
    assert seen == [(shape, dtype)]


def test_the_seed_decides_the_draws(monkeypatch):
    seen = []
    made = attention.attention_actions
    monkeypatch.setattr(attention, "attention_actions", lambda q, k, v: seen.append(q) or made(q, k, v))
    for seed in (0, 0, 1):
        measure_attention([4], heads=1, width=8, device=CPU, rounds=3, seed=seed)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


@pytest.fixture
def clock(monkeypatch):
    """Every action takes a second; the calls that were made."""
    calls = []

    def fake(actions, *, device, rounds, warmup, seed):
        calls.append((rounds, warmup))
        return {name: np.ones(rounds) for name in actions}

    monkeypatch.setattr(attention, "measure_rounds", fake)
    return calls


@pytest.mark.parametrize(
    ("rounds", "seconds", "made"),
    [(20, 1e9, 20), (20, 0, 3), (20, 20, 10), (5, 1e9, 5), (3, 0, 3), (20, math.inf, 20)],
)
def test_rounds_stop_when_the_time_is_spent_but_not_before_three(clock, rounds, seconds, made):
    times = timed_rounds({"one": int, "other": int}, device=CPU, rounds=rounds, seconds=seconds)
    assert {name: len(taken) for name, taken in times.items()} == {"one": made, "other": made}
    assert sum(rounds for rounds, _ in clock) == made
    assert [warmup for _, warmup in clock] == [1, 0][: len(clock)]  # only the first need warm up


def test_growth_is_the_power_of_the_tokens():
    assert growth(2.0, 32.0, tokens=(10, 40)) == pytest.approx(2)
    assert growth(2.0, 2.0, tokens=(10, 40)) == 0
    assert growth(None, 32.0, tokens=(10, 40)) is None
    assert growth(0, 32.0, tokens=(10, 40)) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tokens": [4, 0]}, r"tokens are \[4, 0\], but must be one or more numbers, each 1 or more"),
        ({"tokens": []}, "tokens are "),
        ({"rounds": 2}, "rounds is 2, but an interval needs 3 or more"),
    ],
)
def test_wrong_settings_are_named(words, message):
    settings = {"tokens": [4], "heads": 1, "width": 8, "device": CPU, **words}
    with pytest.raises(ValueError, match=message):
        measure_attention(settings.pop("tokens"), **settings)
