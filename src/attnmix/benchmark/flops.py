"""Counted floating-point operations: what a step must compute at least, whoever computes it how fast."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def count_flops(action: Callable[[], object]) -> int:
    """Matrix products, convolutions and attention that `action` runs, its backward pass too, in FLOPs.

    Two for each multiply-add, as torch's counter has it; what works element by element is not counted, nor is
    what runs inside a compiled region.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION)
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with counter:
        action()
    return int(counter.get_total_flops())


class _NoModules:
    """In the place of the counter's hooks on every module, for whose sake a clean pass would run to its end."""

    parents = ("Global",)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


# torch's counter knows the fused attention of GPUs alone and would take the CPU's for nothing.
def _forward(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


_CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}
