"""Attention-guided image mixing for unmodified timm vision transformers.

The ten lines to know:

    model = timm.create_model("deit_tiny_patch16_224", num_classes=10)
    method = attnmix.create_method("smmix", num_classes=10)
    task = attnmix.MixTask(model, method)
    for images, labels in loader:
        out = task(images, labels)
        out["loss"].backward()
        ...

Names are imported when they are first asked for: `attnmix --help` need not wait for torch. The model families
that timm lacks (`attnmix.models`) are in timm's registry once both packages are imported, in any order.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnmix._registration import register_with_timm

if TYPE_CHECKING:
    from attnmix.attention import AttentionTap
    from attnmix.methods import METHODS, Choice, MixMethod, create_method
    from attnmix.mixing import MixedBatch
    from attnmix.task import MixTask

__version__ = "0.1.0"

__all__ = ["METHODS", "AttentionTap", "Choice", "MixMethod", "MixTask", "MixedBatch", "create_method"]

_HOMES = {
    "METHODS": "attnmix.methods",
    "AttentionTap": "attnmix.attention",
    "Choice": "attnmix.methods",
    "MixMethod": "attnmix.methods",
    "MixTask": "attnmix.task",
    "MixedBatch": "attnmix.mixing",
    "create_method": "attnmix.methods",
}


register_with_timm()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
