"""What each process has of the data: even batches where shares are uneven, and an account of who saw how much."""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import IterableDataset

__all__ = ["EvenedBatches", "expected_samples", "told_shares"]

_LISTED = 8  # processes whose counts are told one by one


class EvenedBatches(DataLoaderStateMixin):
    """A loader of this process's share, so that `gather_for_metrics` gets every sample of all shares exactly once.

    Shares may be of any size, none included. Where the processes' batches are of one size they pass as they are;
    else they are put together and dealt out anew, in equal parts, with what fills the last part up at the end,
    where `gather_for_metrics` cuts it off.
    """

    def __init__(self, loader: Any, accelerator: Accelerator) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.accelerator = accelerator
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.begin()
        try:
            source = iter(self.loader)
            while True:
                batch: Any = next(source, None)
                size = torch.tensor([0 if batch is None else len(batch[1])], device=self.accelerator.device)
                sizes = self.accelerator.gather(size).tolist()
                total = sum(sizes)
                if total == 0:
                    return
                if min(sizes) < max(sizes):
                    batch = self._dealt_out(batch, total)
                # of every batch, not of the last alone: so many of what is gathered are samples
                self.end_of_dataloader, self.remainder = True, total
                yield batch
        finally:
            self.end()

    def _dealt_out(self, batch: Any, total: int) -> Any:
        found = [other for other in gather_object([batch]) if other is not None]
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        part = -(-total // processes)
        mine = torch.arange(rank * part, (rank + 1) * part) % total
        return tuple(torch.cat(parts)[mine] for parts in zip(*found, strict=True))


def expected_samples(data: Any, *, batch_size: int, processes: int, workers: int) -> dict[str, Any]:
    """Return the keywords `expected` and `rounding` of `told_shares` for the training set `data`.

    An epoch is rounded up to whole batches of all processes; a stream's, to whole batches of all their workers.
    """
    is_stream = isinstance(data, IterableDataset)
    expected = getattr(data, "num_samples", None) if is_stream else len(data)
    return {"expected": expected, "rounding": batch_size * processes * (max(1, workers) if is_stream else 1)}


def told_shares(accelerator: Accelerator, seen: int, *, expected: int | None = None, rounding: int = 0) -> str:
    """Return a line on how many samples each process saw in an epoch. Every process has to call it.

    Args:
        accelerator: gathers the counts.
        seen: by this process.
        expected: what the data set holds; None where it does not say.
        rounding: by fewer than so many an epoch may differ from that.
    """
    counts = accelerator.gather(torch.tensor([seen], device=accelerator.device)).tolist()
    total = sum(counts)
    each = ", ".join(f"rank {rank} {count}" for rank, count in enumerate(counts[:_LISTED]))
    if len(counts) > _LISTED:
        each = f"{len(counts)} ranks, {min(counts)} to {max(counts)} each"
    elif len(counts) == 1:
        each = str(seen)
    line = f"samples seen in the first epoch: {each}" + (f" of {expected}" if expected else "")
    if min(counts) < max(counts):
        line += f"; warning: the ranks differ by {max(counts) - min(counts)}, and each should see as many"
    off = total - expected if expected else 0
    if off:
        missing = f"{total} in all, {abs(off)} {'more' if off > 0 else 'fewer'} than the data set holds"
        if abs(off) < rounding:
            return f"{line} ({missing}: an epoch is of whole batches)"
        reason = "is each shard read once?" if off > 0 else "is the stated number of samples right?"
        line += f"; warning: {missing}: {reason}"
    return line
