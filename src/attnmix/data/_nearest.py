"""Error messages that name the nearest known word."""

import difflib
from collections.abc import Iterable


def nearest(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'X'?` for the known word most like `word`, or nothing where none is near.

    A dash is as good as an underscore, as for the keys of a recipe.
    """
    words = {name.replace("-", "_"): name for name in known}
    match = difflib.get_close_matches(str(word).replace("-", "_"), words, n=1, cutoff=0.5)
    return f"; did you mean {words[match[0]]!r}?" if match else ""


def check_keys(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """ValueError for the first key of `given` that is not in `known`, naming the nearest."""
    known = sorted(known)
    for key in given:
        if key not in known:
            listed = f"known: {', '.join(known)}" if known else "none are known here"
            raise ValueError(f"unknown {what} key {key!r}{nearest(key, known)}; {listed}")
