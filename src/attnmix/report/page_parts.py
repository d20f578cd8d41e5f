"""What every page of ours is made of: pictures with words, the templates, settings as lists."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from attnmix.report.results import MISSING
from attnmix.report.style import png

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Picture:
    """One figure of the page: its file's name, what it shows in words, and its pixels."""

    name: str
    alt: str
    data: bytes
    wide: bool = False  # scrolls on a phone rather than shrinking until its text cannot be read

    @property
    def address(self) -> str:
        """The picture as a data address, so that the page needs no other file."""
        return "data:image/png;base64," + base64.b64encode(self.data).decode("ascii")


def environment() -> Environment:
    """The templates; everything put into them is escaped, and a name that they lack is an error."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def as_picture(figure: Figure, name: str, alt: str, *, wide: bool = False) -> Picture:
    """A figure as the picture of a page."""
    return Picture(name, alt, png(figure), wide)


def write_pictures(pictures: Sequence[Picture], folder: Path) -> None:
    """Each picture as `folder/NAME.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / f"{picture.name}.png").write_bytes(picture.data)


def file_names(stem: str, labels: Sequence[str]) -> list[str]:
    """A file name for each label: safe on every file system, no two alike."""
    names: list[str] = []
    for label in labels:
        name = f"{stem}-{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-')[:60]}"
        unique, count = name, 2
        while unique in names:
            unique, count = f"{name}-{count}", count + 1
        names.append(unique)
    return names


def sections(recipe: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The recipe as titled lists of (setting, value): plain ones first, then a list for each nested dict."""
    plain = [(str(key), setting(value)) for key, value in recipe.items() if not isinstance(value, Mapping)]
    if plain:
        yield "general", plain
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield str(key), list(_flat(value))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", setting(value)


def moment(created: object) -> str:
    """An ISO time without its fractions of a second; anything else as it is."""
    try:
        return f"{datetime.fromisoformat(str(created)):%Y-%m-%d %H:%M %Z}".strip()
    except ValueError:
        return str(created or MISSING)


def setting(value: object) -> str:
    """A setting as text; None is a dash."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
