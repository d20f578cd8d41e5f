"""Methods as they are typed: `none,cutmix,cutmix:mixup_prob=0.5,smmix:fine=false:block=2`."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from attnmix.methods import METHODS, create_method


@dataclass(frozen=True)
class MethodSpec:
    """One method with options of its own.

    Attributes:
        name: the method's name, or several joined by `+`.
        options: over the recipe's method_options.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How tables name it: `cutmix (mixup_prob=0.5)`."""
        inside = ", ".join(f"{option}={value}" for option, value in self.options.items())
        return f"{self.name} ({inside})" if inside else self.name

    @property
    def folder(self) -> str:
        """The label as a file name."""
        return re.sub(r"[^A-Za-z0-9.+_=-]+", "-", self.label).strip("-")


def parse_methods(typed: str) -> list[MethodSpec]:
    """Read a comma-separated list; `all` is every method as it is.

    Raises:
        ValueError: an unknown method or option (the nearest is named), an option without value, or a method
            twice.
    """
    if typed.strip() == "all":
        return [MethodSpec(name) for name in METHODS]
    specs = []
    for item in filter(None, (part.strip() for part in typed.split(","))):
        name, *settings = item.split(":")
        options = {}
        for setting in settings:
            option, equals, value = setting.partition("=")
            if not equals:
                raise ValueError(f'"{setting}" in "{item}": options are written name:option=value')
            options[option] = yaml.safe_load(value)
        create_method(name, num_classes=2, **options)  # an unknown name or option ends here
        specs.append(MethodSpec(name.replace("_", "-"), options))
    if not specs:
        raise ValueError("no method named; for example --methods none,cutmix,smmix, or all")
    labels = [spec.label for spec in specs]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{label} is named twice")
    return specs
