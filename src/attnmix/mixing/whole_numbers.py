"""Options that count something."""

from numbers import Integral


def is_whole(value: object) -> bool:
    """Whether this is a whole number, NumPy's too; True and False are none, though Python counts with them."""
    return isinstance(value, Integral) and not isinstance(value, bool)
