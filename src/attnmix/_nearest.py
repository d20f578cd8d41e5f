"""Error messages that name the nearest known word."""

import difflib
from collections.abc import Iterable


def nearest_word(word: object, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The known word most like `word`, if one is near; a dash is as good as an underscore, as in recipes' keys.

    Args:
        word: what was typed.
        known: of a thousand, some are near anything: these want a higher cutoff.
        cutoff: share of letters, from 0 to 1, that they have in common at least.
    """
    words = {name.replace("-", "_"): name for name in known}
    match = difflib.get_close_matches(str(word).replace("-", "_"), words, n=1, cutoff=cutoff)
    return words[match[0]] if match else None


def nearest(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'X'?` for the known word most like `word`, or nothing where none is near."""
    found = nearest_word(word, known)
    return "" if found is None else f"; did you mean {found!r}?"


def check_keys(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """ValueError for the first key of `given` that is not in `known`, naming the nearest."""
    known = sorted(known)
    for key in given:
        if key not in known:
            listed = f"known: {', '.join(known)}" if known else "none are known here"
            raise ValueError(f"unknown {what} key {key!r}{nearest(key, known)}; {listed}")
