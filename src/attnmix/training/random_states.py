"""Where the generators stand that everything global draws from."""

import random
from typing import Any

import numpy as np
import torch

__all__ = ["get_rng_state", "set_rng_state"]


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of torch's (`device`'s too), Python's and NumPy's generators as tensors and numbers."""
    version, python_keys, python_gauss = random.getstate()
    _, numpy_keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": [version, torch.tensor(python_keys), python_gauss],
        "numpy": [torch.from_numpy(np.asarray(numpy_keys).astype(np.int64)), position, has_gauss, gauss],
    }


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `get_rng_state` returned; `device` may be another one of its kind."""
    torch.set_rng_state(state["torch"])
    if state["device"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
    version, python_keys, python_gauss = state["python"]
    random.setstate((version, tuple(python_keys.tolist()), python_gauss))
    numpy_keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", numpy_keys.numpy().astype(np.uint32), position, has_gauss, gauss))
