"""A method's steps taken apart by what they do to the batch, so that a cost need not wait for lucky draws."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnmix.methods import create_method, method_options

# what makes every step of a method keep, blend or paste
FORCED = {
    "keep": {"prob": 0.0},
    "blend": {"prob": 1.0, "mixup_prob": 1.0},
    "paste": {"prob": 1.0, "mixup_prob": 0.0},
}


@dataclass(frozen=True)
class StepKind:
    """One kind of step of a method.

    Attributes:
        share: how often the method's step is of this kind.
        method: the name of one method.
        options: with which every step of it is of this kind.
    """

    share: float
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for kinds that are measured alike, whatever their share."""
        return f"{self.method} {dict(sorted(self.options.items()))}"


def step_kinds(name: str, options: Mapping[str, Any]) -> list[StepKind]:
    """The kinds of step that a method by name, or several joined by `+`, draws with these options.

    A method that cannot be made to draw one kind alone (TokenMixup on a base of several) is one kind, as it is.

    Raises:
        ValueError: an unknown name or option.
    """
    create_method(name, num_classes=2, **options)
    members = name.split("+")
    kinds = []
    for member in members:
        known = method_options(member, options)
        own = {option: value for option, value in options.items() if option in known}
        found = []
        for kind, share in create_method(member, num_classes=2, **own).shares.items():
            forced = own | {option: value for option, value in FORCED[kind].items() if option in known}
            if share and create_method(member, num_classes=2, **forced).shares[kind] == 1:
                found.append(StepKind(share / len(members), member, forced))
        complete = abs(sum(kind.share for kind in found) * len(members) - 1) < 1e-9
        kinds += found if complete else [StepKind(1 / len(members), member, own)]
    return kinds
