"""Rows of a figure: a group for each set, method, map or class, in it a place for each model."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnmix.report.evaluation import records as read
from attnmix.report.evaluation.legend import legend_height
from attnmix.report.results import number
from attnmix.report.style import INK, calm, new_figure, short

GAP = 0.16  # inches between groups
LEAST = 0.17  # inches of a group
NAME_LENGTH = 28  # characters
NAME_INCHES, PANEL_INCHES, LEAST_PANELS = 1.6, 2.9, 1.35


@dataclass(frozen=True)
class Group:
    """Records under one name, by model; a control may be the same for every model."""

    name: str
    records: Mapping[str, read.Record]
    control: bool = False

    @property
    def shared(self) -> bool:
        """A control that several models have alike, drawn once."""
        records = list(self.records.values())
        return self.control and len(records) > 1 and all(record == records[0] for record in records)

    @property
    def drawn(self) -> list[tuple[str, read.Record]]:
        """The records that are drawn, with their models."""
        return list(self.records.items())[: 1 if self.shared else None]


@dataclass(frozen=True)
class Rows:
    """Groups beneath each other, their records `step` inches apart (0: on one line)."""

    groups: Sequence[Group]
    step: float

    @property
    def labels(self) -> list[str]:
        """The models that have any record."""
        return list(dict.fromkeys(label for group in self.groups for label in group.records))

    def has(self, measure: str) -> bool:
        """Whether any record has a number for it."""
        return any(
            number(record.get(measure)) is not None for group in self.groups for record in group.records.values()
        )

    def places(self) -> Iterator[tuple[Group, str, read.Record, float]]:
        """Each record that is drawn, its model, and its place in inches beneath the top."""
        top = 0.0
        for group in self.groups:
            first = top + (self._height(group) - self.step * (len(group.drawn) - 1)) / 2
            for i, (label, record) in enumerate(group.drawn):
                yield group, label, record, first + i * self.step
            top += self._height(group) + GAP

    def panels(self, measures: Sequence[str]) -> tuple[Figure, list[Axes]]:
        """A figure with a panel for each measure, a tick at the middle of each group, the first one on top."""
        heights = [self._height(group) for group in self.groups]
        width = NAME_INCHES + PANEL_INCHES * max(len(measures), LEAST_PANELS)
        inches = sum(heights) + GAP * len(heights)
        figure = new_figure(width, inches + 0.75 + legend_height(self.labels, width))
        panels = list(figure.subplots(1, len(measures), squeeze=False, sharey=True)[0])
        middles = [sum(heights[:i]) + GAP * i + height / 2 for i, height in enumerate(heights)]
        for axes, measure in zip(panels, measures, strict=True):
            calm(axes)
            axes.set_title(measure, loc="left", fontsize=11)
            axes.set_yticks(
                middles, [_two_lines(group.name) for group in self.groups], color=INK, linespacing=0.95
            )
            axes.tick_params(axis="y", length=0)
            axes.set_ylim(inches - GAP / 2, -GAP / 2)
        return figure, panels

    def _height(self, group: Group) -> float:
        return max(self.step * len(group.drawn), LEAST)


def _two_lines(name: str) -> str:
    """`name` on at most two lines, which is what the gap between groups has room for."""
    lines = textwrap.wrap(" ".join(name.split()), NAME_LENGTH, break_on_hyphens=False) or [""]
    return "\n".join([lines[0], short(" ".join(lines[1:]), NAME_LENGTH)]) if len(lines) > 1 else lines[0]


def grouped(found: Mapping[str, Sequence[read.Record]], key: str, *, controls: Sequence[str] = ()) -> list[Group]:
    """The records of a table by what they have under `key`, in order, controls last."""
    groups: dict[str, dict[str, read.Record]] = {}
    for label, records in found.items():
        for record in records:
            groups.setdefault(str(record.get(key)), {})[label] = record
    ordered = sorted(groups, key=lambda name: name in controls)
    return [Group(name, groups[name], name in controls) for name in ordered]
