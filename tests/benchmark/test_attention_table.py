from attnmix.benchmark.attention import AttentionCost
from attnmix.benchmark.attention_table import HEAD, INTERVAL, attention_notes, attention_table, without_interval


def test_growth_is_between_numbers_of_tokens_and_starts_after_the_first():
    body = attention_table([AttentionCost(n, "a", n**2 * 1e-4, 2.0, 1.9, 2.1, n * 2**20, 9) for n in (10, 40)])
    by_name = [dict(zip(HEAD, row, strict=True)) for row in body]
    assert (by_name[0]["time ∝"], by_name[0]["memory ∝"]) == ("–", "–")
    assert (by_name[1]["time ∝"], by_name[1]["memory ∝"]) == ("N^2.0", "N^1.0")
    assert (by_name[1]["ms"], by_name[1]["MiB"], by_name[1]["× fused"]) == ("160", "40.0", "2.00")
    assert by_name[1]["95 % interval"] == "1.90–2.10"


def test_a_row_that_was_left_out_is_blank():
    costs = [AttentionCost(9, "a", 1e-6, 1.0, 1.0, 1.0, 4, 3), AttentionCost(9, "b", needed_bytes=6 * 2**30)]
    assert attention_table(costs)[1] == ["9", "b", *["–"] * 6]
    assert "b needs 6.00 GiB at 9 tokens and was left out: raise --max_gib" in attention_notes(costs)[-1]


def test_the_interval_is_dropped_where_room_is_short():
    head, body = without_interval(HEAD, attention_table([AttentionCost(9, "a", 1e-3, 1.0, 0.9, 1.1, 4, 3)]))
    assert INTERVAL not in head
    assert len(head) == len(body[0]) == len(HEAD) - 1
    assert body == [["9", "a", "1.00", "1.00", "0.000", "–", "–"]]


def test_small_numbers_are_no_zeros_and_no_growth_has_no_sign():
    body = attention_table(
        [AttentionCost(n, "a", 1e-3 - n * 1e-6, 0.012, 0.011, 0.013, 2**20 + n, 3) for n in (9, 18)]
    )
    assert body[1] == ["18", "a", "0.982", "0.012", "0.011–0.013", "1.00", "N^0.0", "N^0.0"]
