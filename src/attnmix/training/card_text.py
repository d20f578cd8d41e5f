"""Text that may be published: names that mean nothing to Markdown or HTML, paths by their last name only."""

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from attnmix.data.timm_sets import PREFIXES

__all__ = ["as_block", "as_code", "as_line", "hub_data", "published", "without_path"]

HUB = ("hf-hub:", "hf_hub:")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_ON_THE_HUB = ("hfds", "hfids")  # prefixes of data whose names are the hub's


def as_line(text: str) -> str:
    """One line, without what cannot be seen."""
    return "".join(c for c in " ".join(str(text).split()) if c.isprintable())


def as_code(text: str) -> str:
    """A code span, in which neither Markdown nor HTML means anything."""
    line = as_line(text)
    if "`" not in line:
        return f"`{line or ' '}`"
    fence = "`" * (_longest_run(line) + 1)
    return f"{fence} {line} {fence}"


def as_block(text: str, language: str) -> str:
    """A code block that no line of the text can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def published(value: Any) -> Any:
    """A recipe's value, `without_path` in every text of it, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: published(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [published(inner) for inner in value]
    return without_path(value) if isinstance(value, str) else value


def without_path(text: str) -> str:
    """A path or an address by its last part; other texts, and names of the hub's and timm's data, whole.

    Relative paths count too: what a person calls folders is no one else's business.
    """
    if text.startswith(HUB):
        return text
    if text.startswith("local-dir:"):
        return "local-dir:" + _last(text.removeprefix("local-dir:"))
    prefix, slash, rest = text.partition("/")
    if slash and prefix.lower() in PREFIXES:
        is_name = _HUB_NAME.fullmatch(rest) and not os.path.exists(rest)
        return text if is_name else f"{prefix}/{_last(rest)}"
    return _last(text) if "/" in text or "\\" in text else text


def _last(path: str) -> str:
    return PureWindowsPath(PurePosixPath(path).name).name


def hub_data(data: str) -> str | None:
    """The hub's name of a recipe's data, where it is from there."""
    prefix, slash, name = data.partition("/")
    return name if slash and prefix.lower() in _ON_THE_HUB and without_path(data) == data else None
