"""Memory by counting, not by asking the system: the same number on every run, on a shared machine too."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.autograd.profiler import profile

# What the profiler itself writes to stderr, which is about none of our measurements.
CHATTER = re.compile(rb"USDT:|ERROR:.*DeviceProperties|\[W.*CPUAllocator")


def saved_for_backward(action: Callable[[], object], *, known: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd keeps for the backward pass of what `action` runs, at the moment when it keeps most.

    Whole storages, each counted once however many nodes keep a view of it, for as long as one of them does.
    What an autograd function keeps beside autograd (as attributes of its context) is not seen.

    Args:
        action: a forward pass; its backward pass may follow.
        known: tensors that exist anyway (parameters, buffers, the batch): their storages do not count.
    """
    ledger = _Ledger({_storage(tensor) for tensor in known})
    with saved_tensors_hooks(lambda tensor: _Kept(tensor, ledger), lambda kept: kept.tensor):
        action()
    return ledger.most


def peak_allocated(action: Callable[[], object], device: torch.device) -> int:
    """Most bytes allocated on `device` at any one time while `action` runs, above what was allocated before.

    On a GPU torch's allocator says so. On the CPU torch's profiler reports each block that tensors take and give
    back, and the running total's maximum counts; that blocks from before the action are given back in it is not
    seen, nor memory that libraries take past torch's allocator (MKL's and oneDNN's own buffers).

    Raises:
        ValueError: neither a CPU nor a CUDA device.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            action()
            torch.cuda.synchronize()
            return max(0, torch.cuda.max_memory_allocated() - before)
    if device.type != "cpu":
        raise ValueError(f"memory on {str(device)!r} cannot be measured, only on cpu and cuda")
    with _quiet_profiler(), profile(profile_memory=True) as seen:
        action()
    # The only place where this profiler keeps blocks one by one, and the tests hold it to that.
    events = [event for event in seen.kineto_results.events() if event.name() == "[memory]"]
    total = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


class _Ledger:
    """Counts how many kept tensors hold each storage."""

    def __init__(self, known: set[tuple[str, int]]) -> None:
        self.known = known
        self.holders: Counter[tuple[str, int]] = Counter()
        self.total = 0
        self.most = 0

    def add(self, storage: tuple[str, int], size: int) -> None:
        if storage in self.known:
            return
        self.total += 0 if self.holders[storage] else size
        self.holders[storage] += 1
        self.most = max(self.most, self.total)

    def remove(self, storage: tuple[str, int], size: int) -> None:
        if storage in self.known:
            return
        self.holders[storage] -= 1
        self.total -= 0 if self.holders[storage] else size


class _Kept:
    """A saved tensor; while it lives nobody else's storage can have its address."""

    def __init__(self, tensor: Tensor, ledger: _Ledger) -> None:
        self.tensor = tensor
        self._entry = (_storage(tensor), tensor.untyped_storage().nbytes())
        self._ledger = ledger
        ledger.add(*self._entry)

    def __del__(self) -> None:
        self._ledger.remove(*self._entry)


def _storage(tensor: Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep `CHATTER` off stderr, which is written below Python; everything else is passed on at the end."""
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as heard:
        os.dup2(heard.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            heard.seek(0)
            for line in heard:
                if not CHATTER.match(line):
                    os.write(stderr, line)
            os.close(stderr)
