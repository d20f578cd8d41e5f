"""Trying an input: it is taken, or refused in words, in good time."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LEVEL = int(os.environ.get("ATTNMIX_FUZZ", "1"))
SECONDS = 20  # far above what any input takes on a slow, busy core
LONGEST = 2000  # characters of a message

tried: Counter[str] = Counter()


class TooSlow(BaseException):
    """No except clause of a reader takes this for an error of the input."""


def fuzz(examples: int) -> Callable[[Any], Any]:
    """The same examples in every run, and no clock."""
    return settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=examples * LEVEL,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


def attempt(
    kind: str, read: Callable[[], Any], *, errors: tuple = (ValueError, FileNotFoundError), names: str = ""
) -> tuple[Any, str]:
    """What `read` gives, or None and the message of its refusal.

    Any error but `errors` fails the test, and so does a message that is empty, long, or without `names`; also an
    input that takes much longer than any may.
    """

    def stop(*_: object) -> None:
        raise TooSlow

    tried[kind] += 1
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    started = time.monotonic()
    try:
        found, message = read(), None
    except errors as refusal:
        found, message = None, str(refusal)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < SECONDS
    if message is not None:
        assert message.strip(), "an empty message"
        assert len(message) <= LONGEST, message[:300]
        assert names in message, message
    return found, message or ""


def mangled(whole: bytes, most: int = 3) -> st.SearchStrategy[bytes]:
    """`whole` with some bytes cut off, taken out, flipped, made zero, put in, or moved, a few times over."""

    @st.composite
    def harm(draw: Any) -> bytes:
        data = bytearray(whole)
        for _ in range(draw(st.integers(1, most))):
            if not data:
                break
            place = draw(st.integers(0, len(data) - 1))
            length = draw(st.sampled_from([1, 2, 4, 16, 200]))
            kind = draw(st.sampled_from(["flip", "cut", "out", "zero", "put", "move", "number"]))
            if kind == "flip":
                data[place] ^= 1 << draw(st.integers(0, 7))
            elif kind == "cut":
                del data[place:]
            elif kind == "out":
                del data[place : place + length]
            elif kind == "zero":
                data[place : place + length] = bytes(len(data[place : place + length]))
            elif kind == "put":
                data[place:place] = draw(st.binary(min_size=1, max_size=16))
            elif kind == "move":
                other = draw(st.integers(0, len(data) - 1))
                data[place : place + length] = data[other : other + length]
            else:  # sizes and offsets are what a reader trusts
                number = draw(st.sampled_from([0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF]))
                data[place : place + 4] = number.to_bytes(4, draw(st.sampled_from(["little", "big"])))
        return bytes(data)

    return harm()


numbers = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**32, 2**62, 2**63, 2**64, 2**70, -(2**63), 10**30]),
    st.floats(allow_nan=True),
)
words = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "../../x", "/etc/passwd", "os.system", "$(touch x)", "\0", "a" * 5000, "caf\udce9", "-"]),
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=8,
)


def with_other_values(
    whole: dict[str, Any], values: st.SearchStrategy[Any] = plain, most: int = 2
) -> st.SearchStrategy[dict[str, Any]]:
    """`whole` with parts left out, exchanged, or of other values."""

    @st.composite
    def change(draw: Any) -> Any:
        changed = whole
        for _ in range(draw(st.integers(1, most))):
            changed = _changed(draw, changed, values)
        return changed

    return change().filter(lambda changed: isinstance(changed, dict))


def _changed(draw: Any, part: Any, values: st.SearchStrategy[Any]) -> Any:
    if isinstance(part, dict) and part and draw(st.integers(0, 5)):
        key = draw(st.sampled_from(list(part)))
        if not draw(st.integers(0, 4)):
            return {name: value for name, value in part.items() if name != key}
        if not draw(st.integers(0, 6)):
            return {**part, draw(words): part[key]}
        return {**part, key: _changed(draw, part[key], values)}
    if isinstance(part, (list, tuple)) and part and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(part) - 1))
        if not draw(st.integers(0, 3)):
            return type(part)([*part[:place], *part[place + 1 :]])
        return type(part)([*part[:place], _changed(draw, part[place], values), *part[place + 1 :]])
    return draw(values)
