"""The table of methods: who published each, what it does, what it costs and what it needs."""

from collections.abc import Sequence

from attnmix.methods import METHODS, MixMethod
from attnmix.methods.choice import Choice

COLUMNS = ("name", "paper", "images", "labels", "extra cost of a step", "needs")


def method_rows() -> list[list[str]]:
    """A row of text under `COLUMNS` for each method; the last draws one of several."""
    known: dict[str, type[MixMethod]] = {**METHODS, "a+b": Choice}
    return [
        [name, about.paper, about.images, about.labels, about.cost, ", ".join(about.needs) or "-"]
        for name, about in ((name, kind.about) for name, kind in known.items())
    ]


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table as the README has it."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([f"`{row[0]}`", *row[1:]] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
