"""YAML of plain values, as recipes are written: nothing in it runs, or grows while it is read."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

__all__ = ["check_plain", "load_plain", "shown"]

LARGEST = 100_000  # characters; the longest recipe of ours has a fiftieth of it
DEEPEST = 20  # lists and mappings within each other
WIDEST_INT = 2**64

_MERGE = "tag:yaml.org,2002:merge"
_FLOAT, _TIME = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"


def load_plain(text: str) -> Any:
    """Read YAML of strings, numbers, yes and no, null, and lists and mappings (by words) of these.

    2e-3 is a number. Aliases are refused: a few lines of them make billions of values.

    Raises:
        ValueError: anything else, a key that stands twice, or far too much of it.
    """
    if len(text) > LARGEST:
        raise ValueError(f"{len(text)} characters, and {LARGEST} are the most")
    try:
        value = yaml.load(text, Loader=_PlainLoader)  # a SafeLoader: no tag makes it call anything
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    check_plain(value)
    return value


def shown(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


class _PlainLoader(yaml.SafeLoader):
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "an alias (*): write the value out", mark)
        self._depth += 1
        if self._depth > DEEPEST:
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, f"more than {DEEPEST} levels", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    mark = key.start_mark
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands there twice", mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


# dates stay words; and numbers need no dot before their exponent
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != _TIME]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789"))


def check_plain(value: Any) -> None:
    """Refuse what `load_plain` does not give.

    Raises:
        ValueError: such a value.
    """
    for count, item in enumerate(_within(value, 0)):
        if count > LARGEST:  # a pickle's lists may be the same one many times over
            raise ValueError(f"more than {LARGEST} values")
        if isinstance(item, str):
            if item == "class_path":  # a key under which jsonargparse imports a class
                raise ValueError("the word 'class_path': a recipe names no code")
            if re.search("[\0\ud800-\udfff]", item):
                raise ValueError(f"characters that no name has: {shown(item)}")
        elif isinstance(item, int):
            if abs(item) >= WIDEST_INT:
                raise ValueError("a whole number of more than 64 bits")
        elif not (item is None or isinstance(item, float)):
            raise ValueError(f"a {type(item).__name__}: want words, numbers, lists and mappings")


def _within(value: Any, depth: int) -> Iterator[Any]:
    """All words and numbers, keys too."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels of lists and mappings")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {shown(key)}, which is no word")
            yield key
            yield from _within(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _within(item, depth + 1)
    else:
        yield value
