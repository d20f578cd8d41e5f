"""Where score maps come from: a teacher asked at every step, or maps that come with the labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.base import Labels, MixMethod
from attnmix.methods.choice import Choice
from attnmix.methods.pasting import Pasting
from attnmix.methods.teacher import Teacher
from attnmix.mixing.label_maps import LabelMaps, dense_scores

WAY_OUT = (
    'give it a teacher, teacher= the folder of a run, a timm model of the same classes, or "self"; or train with '
    "label maps made by `attnmix maps`, label_maps= their folder"
)


class Taught(Pasting):
    """A method that pastes, and learns from the score maps of the unmixed images.

    Args:
        teacher: a frozen model asked once a step, without gradient: timm's name for it, the folder of an exported
            run, a module, or `self`, the model under training as it stands. None: labels come with maps.
        teacher_options: of `timm.create_model`, for a teacher given by name; `pretrained` is on by default.
        options: as `Pasting`'s.

    Raises:
        ValueError: options without a teacher.
    """

    takes_label_maps = True
    teacher_option = "teacher"

    def __init__(
        self,
        *,
        teacher: str | nn.Module | None = None,
        teacher_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if teacher is None and teacher_options:
            raise ValueError(f"teacher_options {dict(teacher_options)} need a teacher")
        self.teacher = None if teacher is None else Teacher(teacher, teacher_options)

    @property
    def asks(self) -> bool:
        """Whether score maps are looked at, under the options given."""
        return True

    @property
    def needs_label_maps(self) -> bool:
        """Whether labels have to come with score maps."""
        return self.asks and self.teacher is None

    def bind(self, view: BackboneView) -> None:
        """Needs every token in its place; makes the teacher, which has to score the same classes."""
        super().bind(view)
        view.require_all_tokens()
        if self.asks and self.teacher is not None:
            self.teacher.bind(view, num_classes=self.num_classes)

    def scores(self, view: BackboneView, images: Tensor, labels: Labels) -> Tensor:
        """Logits `[B, C, h, w]` of the unmixed images, by the teacher if there is one, or from their maps.

        Raises:
            ValueError: neither is there.
        """
        if self.teacher is not None:
            return self.teacher.score_maps(view, images)
        if not isinstance(labels, LabelMaps):
            raise ValueError(f"{_typed(self)} has no score maps to learn from: {WAY_OUT}")
        return dense_scores(labels, self.num_classes)


def check_label_maps(method: MixMethod, given: bool) -> None:
    """Whether what a method needs and what the labels bring fit, members of a choice and bases included.

    Args:
        method: as made, bound or not.
        given: whether labels will come with label maps.

    Raises:
        ValueError: maps that are missing, or that nobody looks at.
    """
    parts = [part for part in method.modules() if isinstance(part, MixMethod)]
    needing = [part for part in parts if part.needs_label_maps]
    if needing and not given:
        raise ValueError(f"{_typed(needing[0])} has no score maps to learn from: {WAY_OUT}")
    if needing or not given:
        return
    taking = [part for part in parts if part.takes_label_maps]
    if not taking:
        raise ValueError(f"label maps are given, but {_typed(method)} takes none: leave them out")
    for part in taking:
        if isinstance(part, Taught) and part.asks and part.teacher is not None:
            raise ValueError(
                f"label maps are given, but {_typed(part)} asks its teacher: leave out one of the two"
            )
    raise ValueError(
        f"label maps are given, but {_typed(taking[0])} looks at none with its options: leave them out, or change "
        "these"
    )


def _typed(method: MixMethod) -> str:
    """A method as one types it: `relabel`, `cutmix+relabel`; its class where it has no such name."""
    from attnmix.methods.registry import METHODS  # which imports the methods

    if isinstance(method, Choice):
        return "+".join(_typed(member) for member in method.methods)
    return next((name for name, kind in METHODS.items() if kind is type(method)), type(method).__name__)
