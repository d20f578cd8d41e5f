"""Methods made to paste at every step, as they are judged and shown."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from attnmix.methods import MixMethod, create_method, method_options
from attnmix.task import MixTask

PASTES = {"prob": 1.0, "mixup_prob": 0.0, "mode": "elem"}
UNSEEN = ("mixup_alpha", "smoothing", "seed")  # these change nothing then, or nothing that is looked at


def pasting_method(name: str, *, num_classes: int, seed: int = 0, **options: Any) -> MixMethod | None:
    """A method made to paste at every step, each image its own box where the method can; None if it never pastes.

    What is judged is the label of pasted images; Mixup's blends show both objects everywhere.
    """
    members = pasting_members(name, options)
    if not members:
        return None
    known = set().union(*(method_options(member, options) for member in members))
    forced = {**PASTES, "seed": seed}
    # nobody is his own partner; a method without the option pairs images by their content
    if "pairing" in known and options.get("pairing", "flip") == "flip":
        forced["pairing"] = "roll"
    kept = {option: value for option, value in options.items() if option in known}
    return create_method("+".join(members), num_classes=num_classes, **{**kept, **forced})


def with_what_it_learnt(method: MixMethod, model: nn.Module, learnt: Mapping[str, Any]) -> MixMethod:
    """The method with the parameters that were trained for it (AutoMix's Mix Block), put in.

    A method built otherwise than the one that learnt, the one of several that pastes for example, stays as it is.

    Args:
        method: any method.
        model: the timm model that it is to mix for.
        learnt: what the method's state holds, by its keys; empty for a method that learns nothing.
    """
    if not learnt:
        return method
    MixTask(model, method)  # makes them
    if learnt.keys() == method.state_dict().keys():
        method.load_state_dict(learnt)
    return method


def pasting_members(name: str, options: Mapping[str, Any]) -> list[str]:
    """The methods in `a+b` that paste."""
    return [member for member in name.split("+") if "mixup_prob" in method_options(member, options)]


def options_of_pasting(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of a method's options those, unlike their defaults, that count where it is made to paste."""
    known = {
        option: parameter.default
        for member in pasting_members(name, options)
        for option, parameter in method_options(member, options).items()
        if option not in (*PASTES, *UNSEEN)
    }
    return {
        option: value
        for option, value in options.items()
        if option in known and _comparable(value) != _comparable(known[option])
    }


def spelled_out(name: str, options: Mapping[str, Any]) -> str:
    """A method with its options: `smmix (source=random)`."""
    inside = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} ({inside})" if inside else name


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
