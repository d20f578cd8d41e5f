"""What `attnmix bench step` measures: a row for each method, pasting at every step unless it says otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnmix.backbone import BackboneView
from attnmix.benchmark.kinds import StepKind, step_kinds
from attnmix.methods import MixMethod, create_method, method_options
from attnmix.methods.base import Plan, Run
from attnmix.methods.cutmix import CutMix

IDLE_TAP = "idle-tap"
# Pasting is what the methods differ in; an untrained model finds no sample easy, and inf is the dearest tau.
PRESET = {"mixup_prob": 0.0, "tau": float("inf")}


class IdleTap(CutMix):
    """CutMix under a tap on the attention of the last block that nothing reads: what looking costs by itself."""

    def run(self, view: BackboneView, plan: Plan) -> Run:
        """The training forward, tapped for nothing."""
        with view.open_tap():
            run = super().run(view, plan)
        return run


@dataclass(frozen=True)
class StepRow:
    """A method whose step is measured.

    Attributes:
        label: how tables name it.
        method: its name, several joined by `+`, or `idle-tap`.
        options: its own, over `PRESET`.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def kinds(self) -> list[StepKind]:
        """The kinds of step that make up this row, with their shares.

        Raises:
            ValueError: an unknown method or option.
        """
        if self.method == IDLE_TAP:
            return [StepKind(1.0, IDLE_TAP)]
        known = set().union(*(method_options(member, self.options) for member in self.method.split("+")))
        preset = {option: value for option, value in PRESET.items() if option in known}
        return step_kinds(self.method, preset | dict(self.options))


ALL_ROWS = (
    StepRow("none", "none"),
    StepRow("mixup", "mixup"),
    StepRow("cutmix", "cutmix"),
    StepRow("cutmix, idle tap", IDLE_TAP),
    StepRow("transmix", "transmix"),
    StepRow("tl-align", "tl-align"),
    StepRow("smmix", "smmix"),
    StepRow("smmix (mixup_prob=0.5)", "smmix", {"mixup_prob": 0.5}),
    StepRow("tokenmixup:vertical=null (HTM)", "tokenmixup", {"vertical": None}),
    StepRow("tokenmixup:horizontal=null (VTM)", "tokenmixup", {"horizontal": None}),
    StepRow("tokenmixup", "tokenmixup"),
)


def with_baseline(rows: Sequence[StepRow]) -> list[StepRow]:
    """The rows, with plain CutMix in front where none of them is."""
    return list(rows) if any(map(_is_baseline, rows)) else [baseline_of(ALL_ROWS), *rows]


def baseline_of(rows: Sequence[StepRow]) -> StepRow:
    """The row that all others are compared with."""
    return next(filter(_is_baseline, rows))


def _is_baseline(row: StepRow) -> bool:
    return row.method == "cutmix" and not row.options


def make_method(kind: StepKind, *, num_classes: int, seed: int) -> MixMethod:
    """The method that takes steps of this kind."""
    if kind.method == IDLE_TAP:
        return IdleTap(num_classes=num_classes, seed=seed)
    return create_method(kind.method, num_classes=num_classes, seed=seed, **kind.options)
