import math

import numpy as np
import pytest

from attnmix.report.results import (
    MISSING,
    method_labels,
    number,
    pair,
    runs_of,
    show,
    show_range,
    show_share,
    show_spread,
    summary_of,
)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "n/a", [1.0], {}])
def test_what_is_no_finite_number_is_shown_as_a_dash(value):
    assert number(value) is None
    assert show(value) == show_share(value) == show_spread(value, 1.0) == show_range(value, 1.0) == MISSING
    assert show_range(1.0, value) == MISSING


def test_numbers_are_shown_with_fixed_decimals():
    assert show(np.float32(69.84)) == "69.8"
    assert show(-0.0104, 3) == "−0.010"
    assert show(1.175, 1, unit="×") == "1.2×"
    assert show_share(0.5) == "50 %"
    assert show_spread(69.84, 1.26) == "69.8 ± 1.3"
    assert show_spread(69.84, None) == "69.8"
    assert show_range(1.16, 1.2, 2) == "1.16–1.20"


def test_a_pair_needs_two_finite_ends():
    assert pair([1, 2.5]) == (1.0, 2.5)
    assert pair([1.0]) is pair([1.0, None]) is pair([math.nan, 1.0]) is pair(None) is pair("ab") is None


def test_methods_keep_their_order_and_gain_those_only_seen_in_runs():
    results = {"methods": ["b", "a"], "runs": [{"label": "c"}, {"label": "a"}], "summary": [{"label": "d"}]}
    assert method_labels(results) == ["b", "a", "c", "d"]
    assert [len(runs_of(results, label)) for label in "abc"] == [1, 0, 1]
    assert summary_of(results, "d") == {"label": "d"}
    assert summary_of(results, "a") == {}
    assert method_labels({}) == method_labels({"methods": None, "runs": None}) == []
