"""The one table of methods, and how to make one by name."""

import inspect
from collections.abc import Mapping
from typing import Any

from attnmix._nearest import nearest_word
from attnmix.methods.attentivemix import AttentiveMix
from attnmix.methods.automix import AutoMix
from attnmix.methods.base import MixMethod
from attnmix.methods.choice import Choice
from attnmix.methods.co_mixup import CoMixup
from attnmix.methods.cutmix import CutMix
from attnmix.methods.cutout import CutOut
from attnmix.methods.fmix import FMix
from attnmix.methods.gridmix import GridMix
from attnmix.methods.manifold_mixup import ManifoldMixup
from attnmix.methods.mergemix import MergeMix
from attnmix.methods.mixpro import MixPro
from attnmix.methods.mixup import Mixup
from attnmix.methods.none import NoMix
from attnmix.methods.puzzlemix import PuzzleMix
from attnmix.methods.relabel import ReLabel
from attnmix.methods.resizemix import ResizeMix
from attnmix.methods.saliencymix import SaliencyMix
from attnmix.methods.smmix import SMMix
from attnmix.methods.tl_align import TLAlign
from attnmix.methods.token_labeling import TokenLabeling
from attnmix.methods.tokenmix import TokenMix
from attnmix.methods.tokenmixup import TokenMixup
from attnmix.methods.transmix import TransMix

METHODS: dict[str, type[MixMethod]] = {
    "none": NoMix,
    "mixup": Mixup,
    "cutmix": CutMix,
    "transmix": TransMix,
    "smmix": SMMix,
    "tl-align": TLAlign,
    "tokenmixup": TokenMixup,
    "cutout": CutOut,
    "resizemix": ResizeMix,
    "gridmix": GridMix,
    "fmix": FMix,
    "manifold-mixup": ManifoldMixup,
    "saliencymix": SaliencyMix,
    "attentivemix": AttentiveMix,
    "puzzlemix": PuzzleMix,
    "co-mixup": CoMixup,
    "automix": AutoMix,
    "mixpro": MixPro,
    "mergemix": MergeMix,
    "tokenmix": TokenMix,
    "token-labeling": TokenLabeling,
    "relabel": ReLabel,
}


def method_options(name: str, given: Mapping[str, Any] | None = None) -> dict[str, inspect.Parameter]:
    """The options of a method by name, with their defaults; its bases' where it passes them on.

    Args:
        name: of the method.
        given: options that are set: one of them may name another method (TokenMixup's `base`), whose options then
            count too.

    Raises:
        ValueError: unknown name; the message has the nearest known one.
    """
    kind = _find(name)
    options: dict[str, inspect.Parameter] = {}
    for cls in kind.__mro__:
        if "__init__" not in vars(cls):
            continue
        passes_on = False
        for option, parameter in inspect.signature(vars(cls)["__init__"]).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                options.setdefault(option, parameter)
            passes_on = passes_on or parameter.kind is inspect.Parameter.VAR_KEYWORD
        if not passes_on:
            break
    options.pop("num_classes")
    if kind.base_option is not None:
        base = (given or {}).get(kind.base_option, options[kind.base_option].default)
        if isinstance(base, str):
            for member in base.split("+"):
                options |= {o: p for o, p in method_options(member).items() if o not in options}
            for option, default in kind.base_defaults.get(base, {}).items():
                options[option] = options[option].replace(default=default)
    return options


def create_method(name: str, *, num_classes: int, **options: Any) -> MixMethod:
    """Make a mixing method by name; `a+b` draws a or b at every step, with equal chances.

    A dash in a name may be an underscore. Options of `a+b` go to every member that has them.

    Raises:
        ValueError: unknown name or option, naming the nearest known one; a value of a wrong type or range.
    """
    names = name.split("+")
    accepted = {member: method_options(member, options) for member in names}
    known = sorted(set().union(*accepted.values()))
    for option in options:
        if option not in known:
            raise ValueError(f'{name} has no option "{option}"; {_nearest(option, known)}')
    try:
        members = [
            _find(member)(
                num_classes=num_classes,
                **{option: value for option, value in options.items() if option in accepted[member]},
            )
            for member in names
        ]
    except TypeError as error:  # a text where a number belongs, say
        raise ValueError(f"{name} does not work with the options {options}: {error}") from error
    return members[0] if len(members) == 1 else Choice(members, seed=options.get("seed", 0))


def _find(name: str) -> type[MixMethod]:
    found = METHODS.get(name.replace("_", "-"))
    if found is None:
        if ":" in name:  # as methods are typed in a list of several
            name, _, given = name.partition(":")
            raise ValueError(f'options of "{name}" are given apart from its name: method_options, not ":{given}"')
        raise ValueError(f'no method "{name}"; {_nearest(name, list(METHODS))}')
    return found


def _nearest(word: str, known: list[str]) -> str:
    near = nearest_word(word, known)
    hint = f'did you mean "{near}"? ' if near else ""
    return f"{hint}Known: {', '.join(known)}"
