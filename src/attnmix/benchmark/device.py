"""Where a benchmark runs: a device by name, and CPU threads pinned for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def chosen_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU where there is one.

    Raises:
        ValueError: neither auto, cpu nor cuda, or a GPU that is not here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not number.isdecimal()):
        raise ValueError(f"device is {name!r}, but must be auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"device is {name!r}, but torch sees {count} CUDA devices here; use auto or cpu")
    return torch.device(name)


@contextmanager
def pinned_threads(threads: int) -> Iterator[None]:
    """Torch's CPU threads inside; as they were afterwards.

    Raises:
        ValueError: fewer than one.
    """
    if threads < 1:
        raise ValueError(f"threads is {threads}, but must be 1 or more")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
