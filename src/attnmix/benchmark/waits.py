"""How often a step makes the host wait for the GPU."""

import warnings
from collections.abc import Callable

import torch

SAYS = "called a synchronizing CUDA operation"


def count_waits(action: Callable[[], object]) -> int:
    """Synchronising operations that torch sees in `action`; run it once before, since first calls wait for more.

    Raises:
        RuntimeError: no GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("waits are counted on a GPU, and torch sees none here")
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum(SAYS in str(warning.message) for warning in heard)
