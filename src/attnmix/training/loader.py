"""Loaders whose batches depend on the seed and the epoch alone: not on the method, nor on the workers."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset, IterableDataset

from attnmix.training.recipe import Recipe
from attnmix.training.repeats import RepeatedOrder

__all__ = ["ReproducibleItems", "create_loaders", "epoch_batches", "order_seed", "set_epoch"]


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
        outside = torch.get_rng_state(), random.getstate(), np.random.get_state()
        words = np.random.SeedSequence([self.seed, int(self.epoch), index]).generate_state(3)
        torch.default_generator.manual_seed(int(words[0]))  # the CPU's alone
        random.seed(int(words[1]))
        np.random.seed(words[2])
        try:
            return self.dataset[index % len(self.dataset)]
        finally:
            torch.set_rng_state(outside[0])
            random.setstate(outside[1])
            np.random.set_state(outside[2])


def create_loaders(
    train_data: Any, eval_data: Any, recipe: Recipe, accelerator: Accelerator
) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of training and evaluation, shared out among the processes by Accelerate.

    Call `set_epoch(train_loader, epoch)` before each epoch. Workers are kept from epoch to epoch.

    Raises:
        ValueError: streaming data in several processes, or with repeats.
    """
    options: dict[str, Any] = {
        "batch_size": recipe.batch_size,
        "num_workers": recipe.loader.workers,
        "persistent_workers": recipe.loader.workers > 0,
        "pin_memory": recipe.loader.pin and accelerator.device.type == "cuda",
    }
    loaders = []
    for data, is_training in ((train_data, True), (eval_data, False)):
        if isinstance(data, IterableDataset):
            if accelerator.num_processes > 1:
                raise ValueError(
                    f"{recipe.data} is a stream, which {accelerator.num_processes} processes cannot share yet: "
                    "train in one process, or use data that lies in files"
                )
            if is_training and recipe.aug_repeats > 1:
                raise ValueError(
                    f"aug_repeats is {recipe.aug_repeats}, but {recipe.data} is a stream, which gives each image "
                    "once: set it to 1, or use data that lies in files"
                )
            if hasattr(data, "set_loader_cfg"):
                data.set_loader_cfg(num_workers=recipe.loader.workers)
            loaders.append(DataLoader(data, **options))
            continue
        if is_training and not recipe.augment.no_aug:
            data = ReproducibleItems(data, seed=recipe.seed)
        # The worker seeds come from this generator, not from the global one that the model uses.
        generator = torch.Generator().manual_seed(recipe.seed)
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


def order_seed(recipe: Recipe) -> int:
    """Return the seed to which the epoch is added for that epoch's order: seeds far apart share no order."""
    return 100_003 * recipe.seed


def set_epoch(loader: DataLoader, epoch: int) -> None:
    """Choose the epoch's order and augmentations."""
    if hasattr(loader, "set_epoch"):  # Accelerate's: passes it to the sampler
        loader.set_epoch(epoch)
    if hasattr(loader.dataset, "set_epoch"):
        loader.dataset.set_epoch(epoch)


def epoch_batches(loader: Iterable[Any], batches: int) -> Iterator[tuple[int, Any, bool]]:
    """Yield (index, batch, whether it is the epoch's last).

    At most `batches`, which a stream may exceed, and fewer where it ends before its time. Looks one batch ahead,
    so that other loaders come to their own end.
    """
    source = iter(loader)
    batch = next(source, None)
    for index in range(batches):
        if batch is None:
            return
        following = next(source, None)
        yield index, batch, following is None or index + 1 == batches
        batch = following
