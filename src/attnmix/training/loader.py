"""Loaders whose batches depend on the seed and the epoch alone: not on the method, nor on the workers."""

import contextlib
import random
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from attnmix.data.labelled import LabelledImages, MarkedStandIns
from attnmix.training.recipe import Recipe
from attnmix.training.repeats import RepeatedOrder
from attnmix.training.shares import EvenedBatches

__all__ = [
    "ReproducibleItems",
    "ReproducibleStream",
    "create_loaders",
    "epoch_batches",
    "order_seed",
    "set_epoch",
]


@contextlib.contextmanager
def _draws(*words: int) -> Iterator[None]:
    """Let the CPU's global generators draw by `words`, and leave them as they were."""
    outside = torch.get_rng_state(), random.getstate(), np.random.get_state()
    seeds = np.random.SeedSequence(words).generate_state(3)
    torch.default_generator.manual_seed(int(seeds[0]))  # the CPU's alone
    random.seed(int(seeds[1]))
    np.random.seed(seeds[2])
    try:
        yield
    finally:
        torch.set_rng_state(outside[0])
        random.setstate(outside[1])
        np.random.set_state(outside[2])


class ReproducibleItems(Dataset):
    """A data set whose random transforms depend on (seed, epoch, index) alone.

    timm's and torchvision's transforms draw from the global generators, which the model draws from too:
    without this, one more draw in the model would change every image after it. An index beyond the data set
    wraps round: another view of the same image.
    """

    def __init__(self, dataset: Any, *, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # loader workers outlive an epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's augmentations, in the loader's workers too."""
        self.epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        with _draws(self.seed, int(self.epoch), index):
            return self.dataset[index % len(self.dataset)]


class ReproducibleStream(IterableDataset):
    """A stream whose random transforms depend on (seed, epoch, rank, worker, position in its share) alone."""

    def __init__(self, dataset: Any, *, seed: int, rank: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.rank = rank
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's order and augmentations, in the loader's workers too."""
        self.epoch.fill_(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        place = self.seed, int(self.epoch), self.rank, 0 if worker is None else worker.id
        items = iter(self.dataset)
        for position in count():
            with _draws(*place, position):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item


def create_loaders(
    train_data: Any, eval_data: Any, recipe: Recipe, accelerator: Accelerator
) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of training and evaluation, shared out among the processes.

    Data with a length is dealt out by Accelerate, batch by batch; a stream's processes and workers read shares of
    their own. In training every process makes as many steps; in evaluation `accelerator.gather_for_metrics` leaves
    each image in once, and what stands in for an unreadable one has the label `UNREAD`. Call
    `set_epoch(train_loader, epoch)` before each epoch. Workers are kept from epoch to epoch.

    Raises:
        ValueError: streaming data with repeats, or that so many processes and workers cannot share.
    """
    options: dict[str, Any] = {
        "batch_size": recipe.batch_size,
        "num_workers": recipe.loader.workers,
        "persistent_workers": recipe.loader.workers > 0,
        "pin_memory": recipe.loader.pin and accelerator.device.type == "cuda",
    }
    loaders: list[Any] = []
    for data, is_training in ((train_data, True), (eval_data, False)):
        # The worker seeds come from this generator, not from the global one that the model uses.
        generator = torch.Generator().manual_seed(recipe.seed)
        if isinstance(data, IterableDataset):
            data, workers = _share_of_stream(data, recipe, accelerator, is_training=is_training)
            some = {"num_workers": workers, "persistent_workers": workers > 0}
            loader = DataLoader(data, generator=generator, **{**options, **some})
            is_evened = accelerator.num_processes > 1 and not is_training
            loaders.append(EvenedBatches(loader, accelerator) if is_evened else loader)
            continue
        if is_training and not recipe.augment.no_aug:
            data = ReproducibleItems(data, seed=recipe.seed)
        if not is_training and isinstance(data, LabelledImages):
            data = MarkedStandIns(data)
        order: dict[str, Any] = {"shuffle": is_training}
        if is_training and recipe.aug_repeats > 1:
            order = {
                "sampler": RepeatedOrder(
                    data,
                    repeats=recipe.aug_repeats,
                    batch_size=recipe.batch_size,
                    num_processes=accelerator.num_processes,
                    seed=order_seed(recipe),
                )
            }
        loader = DataLoader(data, generator=generator, **order, **options)
        loaders.append(accelerator.prepare_data_loader(loader))
    return loaders[0], loaders[1]


def _share_of_stream(data: Any, recipe: Recipe, accelerator: Accelerator, *, is_training: bool) -> tuple[Any, int]:
    if accelerator.num_processes > 1 and not getattr(data, "can_be_shared", False):
        raise ValueError(
            f"{recipe.data} is a stream of a kind which {accelerator.num_processes} processes cannot share: "
            "train in one process, or use wds/, hfids/ or data that lies in files"
        )
    if is_training and recipe.aug_repeats > 1:
        raise ValueError(
            f"aug_repeats is {recipe.aug_repeats}, but {recipe.data} is a stream, which gives each image "
            "once: set it to 1, or use data that lies in files"
        )
    rank, processes, workers = accelerator.process_index, accelerator.num_processes, recipe.loader.workers
    if hasattr(data, "share_out"):
        workers = data.share_out(rank=rank, processes=processes, workers=workers, seed=order_seed(recipe))
    if is_training and not recipe.augment.no_aug:
        data = ReproducibleStream(data, seed=recipe.seed, rank=rank)
    return data, workers


def order_seed(recipe: Recipe) -> int:
    """Return the seed to which the epoch is added for that epoch's order: seeds far apart share no order."""
    return 100_003 * recipe.seed


def set_epoch(loader: DataLoader, epoch: int) -> None:
    """Choose the epoch's order and augmentations."""
    if hasattr(loader, "set_epoch"):  # Accelerate's: passes it to the sampler
        loader.set_epoch(epoch)
    if hasattr(loader.dataset, "set_epoch"):
        loader.dataset.set_epoch(epoch)


def epoch_batches(loader: Iterable[Any], batches: int, *, first: int = 0) -> Iterator[tuple[int, Any, bool]]:
    """Yield (index, batch, whether it is the epoch's last), from batch `first` on.

    At most up to `batches`, which a stream may exceed, and fewer where it ends before its time. Looks one batch
    ahead, so that other loaders come to their own end. What comes before `first` is not read, but of a stream.
    """
    if first and isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        loader = skip_first_batches(loader, first)  # with the same sampler, whose epoch is set
        source = iter(loader)
    else:
        source = islice(loader, first, None)
    batch = next(source, None)
    for index in range(first, batches):
        if batch is None:
            return
        following = next(source, None)
        yield index, batch, following is None or index + 1 == batches
        batch = following
