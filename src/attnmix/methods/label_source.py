"""Where score maps come from: a teacher asked at every step, or maps that come with the labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from attnmix.backbone import BackboneView
from attnmix.methods.base import Labels, MixMethod
from attnmix.methods.pasting import Pasting
from attnmix.methods.teacher import Teacher
from attnmix.mixing.label_maps import LabelMaps, dense_scores

WAY_OUT = 'give it a teacher (teacher="resnet50", a folder, or "self"), or labels that come with label maps'


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
            raise ValueError(f"{type(self).__name__} has no score maps to learn from: {WAY_OUT}")
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
    needing = [type(part).__name__ for part in parts if part.needs_label_maps]
    if needing and not given:
        raise ValueError(f"{needing[0]} has no score maps to learn from: {WAY_OUT}")
    taking = [part for part in parts if part.takes_label_maps]
    if given and not taking:
        raise ValueError(f"label maps are given, but {type(method).__name__} takes none: leave them out")
    if given and all(isinstance(part, Taught) and part.teacher is not None for part in taking):
        raise ValueError(
            f"label maps are given, but {type(taking[0]).__name__} asks its teacher: leave out one of the two"
        )
