"""With which options each method works on a tiny model in a test, offline."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

import attnmix
from attnmix.methods import method_options

NAMES = list(attnmix.METHODS)
# options by method, from a maker of tiny models; those that are the same for all models may be plain
OPTIONS: dict[str, Callable[[Callable[..., nn.Module]], Mapping[str, Any]]] = {
    # so that both parts act on every sample of these small batches
    "tokenmixup": lambda make: {"horizontal": 1, "vertical": 2, "tau": float("inf"), "rho": 0.0},
    # a frozen model that needs no download; a drawn number of patches, so that the seed matters
    "attentivemix": lambda make: {"provider": make(), "top_k": None},
    # a teacher that needs no download
    "tokenmix": lambda make: {"teacher": make()},
    "token-labeling": lambda make: {"teacher": make()},
    "relabel": lambda make: {"teacher": make()},
}


def has_option(name: str, option: str) -> bool:
    """Whether the method takes an option of this name."""
    return option in method_options(name)


def options_for(
    name: str, make_model: Callable[..., nn.Module], *, class_token: bool = True, **options: Any
) -> dict[str, Any]:
    """Options under which every step of the method pastes, if it can; `options` go before, where it has them."""
    own = dict(OPTIONS.get(name, lambda make: {})(make_model))
    known = method_options(name)
    if "mixup_prob" in known:
        own["mixup_prob"] = 0.0
    if not class_token and "attention" in known and known["attention"].default == "class":
        own["attention"] = "image"
    return {**own, **{option: value for option, value in options.items() if option in known}}
