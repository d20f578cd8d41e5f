"""Repeated augmentation (Hoffer et al., CVPR 2020), as DeiT trains: several views of an image in one epoch."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

__all__ = ["RepeatedOrder"]


class RepeatedOrder(Sampler[int]):
    """An epoch's order with `repeats` views of each image in it, as many items as there are images.

    Item `view * size + image` is a view of its own to `ReproducibleItems`, which the order is made for and asks
    for the epoch. The views of an image follow each other and are dealt out to the processes in turn, as in
    DeiT's sampler, so that a step meets them side by side but, with processes enough, no process does. One
    process has them in one batch. Unlike there, the epoch's length is not cut to a multiple of 256.

    Args:
        items: `ReproducibleItems` of the training set, of length `size`.
        repeats: views of an image.
        batch_size: of each process.
        num_processes: whom Accelerate gives whole batches in turn.
        seed: of the order, with the epoch.
    """

    def __init__(self, items: Any, *, repeats: int, batch_size: int, num_processes: int, seed: int) -> None:
        self.items = items
        self.repeats = repeats
        self.batch_size = batch_size
        self.num_processes = num_processes
        self.seed = seed

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[int]:
        size = len(self.items)
        # as Accelerate's own order: a seed plus the epoch
        generator = torch.Generator().manual_seed(self.seed + int(self.items.epoch))
        images = torch.randperm(size, generator=generator)
        place = torch.arange(size)
        order = images[place // self.repeats] + size * (place % self.repeats)
        # Accelerate gives process 0 the first batch, process 1 the next: put into the batch of process p of
        # each step the places p, p + num_processes, ...; a last step that is not full stays as it is
        full = size - size % (self.batch_size * self.num_processes)
        steps = order[:full].view(-1, self.batch_size, self.num_processes)
        order[:full] = steps.transpose(1, 2).reshape(-1)
        yield from order.tolist()
