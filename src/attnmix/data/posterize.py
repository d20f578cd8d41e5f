"""timm's Posterize asks Pillow for 0 bits now and then, which Pillow 13 refuses (it used to give black)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from timm.data.auto_augment import AugmentOp


def keep_a_bit(transform: Any) -> None:
    """Make every Posterize within a timm transform, changed in place, leave one bit at least."""
    for op in _operations(transform):
        if op.name.startswith("Posterize"):
            op.level_fn = partial(_at_least_one, op.level_fn)


def _at_least_one(level_to_bits: Callable[..., tuple[int]], level: float, hparams: Any) -> tuple[int]:
    return (max(1, *level_to_bits(level, hparams)),)


def _operations(transform: Any) -> Iterator[AugmentOp]:
    """The operations of RandAugment, AutoAugment and AugMix, wherever they lie."""
    if isinstance(transform, AugmentOp):
        yield transform
        return
    parts = transform if isinstance(transform, list | tuple) else vars(transform).values()
    for part in parts:
        if isinstance(part, list | tuple) or type(part).__module__.startswith(("timm.", "torchvision.")):
            yield from _operations(part)
