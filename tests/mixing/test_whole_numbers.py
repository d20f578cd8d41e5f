import numpy as np
import pytest

from attnmix.mixing.whole_numbers import is_whole


@pytest.mark.parametrize("value", [0, 3, -1, np.int64(3)])
def test_whole(value):
    assert is_whole(value)


@pytest.mark.parametrize("value", [1.0, 2.5, True, False, np.bool_(True), "3", None, float("nan")])
def test_not_whole(value):
    assert not is_whole(value)
