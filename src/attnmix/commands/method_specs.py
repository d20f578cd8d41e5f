"""Methods as they are typed: `none,cutmix,cutmix:mixup_prob=0.5,smmix:fine=false:side_ratio=[0.5,0.5]`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from attnmix.methods import METHODS, MixMethod, create_method, method_options


@dataclass(frozen=True)
class MethodSpec:
    """One method with its options.

    Attributes:
        name: the method's name, or several joined by `+`.
        own: options typed for this method; they are part of its label.
        shared: the recipe's method_options, as far as the method has them.
    """

    name: str
    own: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """What the method is made with."""
        return {**self.shared, **self.own}

    @property
    def needs_label_maps(self) -> bool:
        """Whether it learns from score maps, and names no teacher to give them."""
        return any(part.needs_label_maps for part in self._parts)

    def missing_teachers(self, *, maps: bool = False) -> set[str]:
        """The options that have to name a model and do not; with label maps, who takes them needs none."""
        missing = set()
        for part in self._parts:
            if part.teacher_option is None or self.options.get(part.teacher_option) is not None:
                continue
            if not part.takes_label_maps or (part.needs_label_maps and not maps):
                missing.add(part.teacher_option)
        return missing

    def taught_by(self, teacher: str, *, maps: bool = False) -> "MethodSpec":
        """The same with this model where one has to be named; its label is the same."""
        missing = dict.fromkeys(self.missing_teachers(maps=maps), teacher)
        return replace(self, shared={**self.shared, **missing}) if missing else self

    @property
    def _parts(self) -> list[MixMethod]:
        """The method and those that it is made of: members of a choice, a base."""
        made = create_method(self.name, num_classes=2, **self.options)
        return [part for part in made.modules() if isinstance(part, MixMethod)]

    @property
    def label(self) -> str:
        """How tables name it: `cutmix (mixup_prob=0.5)`."""
        inside = ", ".join(f"{option}={value}" for option, value in self.own.items())
        return f"{self.name} ({inside})" if inside else self.name

    @property
    def folder(self) -> str:
        """The label as a file name."""
        return re.sub(r"[^A-Za-z0-9.+_=-]+", "-", self.label).strip("-")


def parse_methods(typed: str, *, shared: Mapping[str, Any] | None = None) -> list[MethodSpec]:
    """Read a comma-separated list; `all` is every method as it is.

    Args:
        typed: the list.
        shared: options for every method that has them.

    Raises:
        ValueError: an unknown method or option (the nearest is named), a shared option that none has, an option
            without value, a seed (the command has its own), or a method twice.
    """
    shared = dict(shared or {})
    items = list(METHODS) if typed.strip() == "all" else _split(typed, ",")
    specs = [_parse(item, shared) for item in items]
    if not specs:
        raise ValueError("no method named; for example --methods none,cutmix,smmix, or all")
    for option in shared:
        if not any(option in spec.shared for spec in specs):
            raise ValueError(f'no method here has the option "{option}"; see `attnmix list methods`')
    labels = [spec.label for spec in specs]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{label} is named twice")
    return specs


def _parse(item: str, shared: Mapping[str, Any]) -> MethodSpec:
    name, *settings = _split(item, ":")
    own = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f'"{setting}" in "{item}": options are written name:option=value')
        own[option] = _value(value)
    if "seed" in own or "seed" in shared:
        raise ValueError("seed is no option of a single method here: all methods take the seed of the command")
    create_method(name, num_classes=2, **own)  # an unknown name or option ends here
    known = set().union(*(method_options(member, {**shared, **own}) for member in name.split("+")))
    spec = MethodSpec(
        name.replace("_", "-"), own, {option: value for option, value in shared.items() if option in known}
    )
    create_method(name, num_classes=2, **spec.options)
    return spec


def _split(text: str, separator: str) -> list[str]:
    """Split at the separator, but not inside brackets; without empty parts."""
    parts = re.split(rf"{separator}(?![^\[]*\])", text)
    return [part.strip() for part in parts if part.strip()]


def _value(text: str) -> Any:
    """A value as in a recipe: YAML, and 1e-1 is a number too."""
    try:
        return float(text) if re.fullmatch(r"[-+]?[0-9.]+e[-+]?[0-9]+", text) else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{text!r} is no value: want a number, true, false, a word or [a, b]") from error
