import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from attnmix.training.loader import ReproducibleItems, create_loaders, epoch_batches, set_epoch
from attnmix.training.setup import create_accelerator


class Random(Dataset):
    """Items that draw from all three global generators."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()]), index


class Stream(IterableDataset):
    epoch = workers = None

    def __len__(self):
        return 6

    def __iter__(self):
        yield from ((torch.tensor([float(index)]), index) for index in range(6))

    def set_epoch(self, epoch):
        self.epoch = epoch

    def set_loader_cfg(self, num_workers):
        self.workers = num_workers


@pytest.fixture
def loaders(tiny, tmp_path):
    def make(train_data, **overrides):
        recipe = tiny(batch_size=4, **overrides)
        return create_loaders(train_data, Random(), recipe, create_accelerator(recipe, tmp_path))

    return make


def items(loader, epoch):
    set_epoch(loader, epoch)
    return torch.cat([images for images, _ in loader])


AUGMENT = {"no_aug": False}


def test_items_depend_on_seed_epoch_and_index_alone():
    data = ReproducibleItems(Random(), seed=0)
    first = data[3][0]
    assert torch.equal(first, data[3][0])
    assert not torch.equal(first[1:], data[4][0][1:])
    data.set_epoch(1)
    assert not torch.equal(first[1:], data[3][0][1:])
    assert not torch.equal(first[1:], ReproducibleItems(Random(), seed=1)[3][0][1:])


def test_items_leave_the_global_generators_alone():
    data = ReproducibleItems(Random(), seed=0)

    def draw():
        return torch.rand(2).tolist(), random.random(), np.random.rand()

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    expected = draw()
    torch.set_rng_state(states[0]), random.setstate(states[1]), np.random.set_state(states[2])
    data[0]
    assert draw() == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_nothing(loaders, workers):
    here, _ = loaders(Random(), augment=AUGMENT)
    there, _ = loaders(Random(), augment=AUGMENT, loader={"workers": workers})
    assert there.num_workers == workers
    for epoch in (3, 4):  # the second time with the same workers
        assert torch.equal(items(here, epoch), items(there, epoch))
    assert there.persistent_workers == (workers > 0)


def test_order_depends_on_seed_and_epoch(loaders):
    (a, _), (b, _), (c, _) = (loaders(Random(), augment=AUGMENT, seed=seed) for seed in (0, 0, 1))
    first, second = items(a, 0), items(a, 1)
    torch.rand(5)
    assert torch.equal(items(b, 1), second)  # straight into the second epoch, as a resumed run
    assert not torch.equal(first[:, 0], second[:, 0])
    assert sorted(first[:, 0].tolist()) == list(range(10))
    assert not torch.equal(first[:, 0], items(c, 0)[:, 0])


def test_evaluation_keeps_its_order(loaders):
    _, loader = loaders(Random())
    assert items(loader, 0)[:, 0].tolist() == list(range(10))


def test_without_augmentation_items_are_taken_as_they_are(loaders):
    loader, _ = loaders(Random(), augment={"no_aug": True})
    assert isinstance(loader.dataset, Random)


def test_streams_share_themselves_out(loaders):
    stream = Stream()
    loader, _ = loaders(stream, augment=AUGMENT)
    assert items(loader, 4).flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert (stream.epoch, stream.workers) == (4, 0)


def test_streams_are_for_one_process_yet(tiny, tmp_path):
    accelerator = SimpleNamespace(num_processes=2, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="digits-in-scenes is a stream, which 2 processes cannot share yet"):
        create_loaders(Stream(), Random(), tiny(), accelerator)


def test_streams_give_an_image_once(loaders):
    with pytest.raises(
        ValueError, match="aug_repeats is 2, but digits-in-scenes is a stream, which gives each .*to 1"
    ):
        loaders(Stream(), aug_repeats=2, augment=AUGMENT)


def test_repeats_are_views_of_fewer_images(loaders):
    loader, _ = loaders(Random(), aug_repeats=3, augment=AUGMENT)
    assert len(loader) == 3  # as without
    first, second = items(loader, 0), items(loader, 1)
    images, counts = first[:, 0].unique(return_counts=True)
    assert sorted(counts.tolist()) == [1, 3, 3, 3]
    assert len(first[:, 1].unique()) == 10  # ten views, all different
    assert sorted(second[:, 0].tolist()) != sorted(first[:, 0].tolist())
    again, _ = loaders(Random(), aug_repeats=3, augment=AUGMENT, loader={"workers": 2})
    assert torch.equal(items(again, 1), second)  # straight into the second epoch, by workers


@pytest.mark.parametrize("given", [0, 2, 3, 7])
def test_an_epoch_has_so_many_batches_or_fewer(given):
    seen = list(epoch_batches(range(10, 10 + given), 3))
    assert seen == [(index, 10 + index, index + 1 == min(given, 3)) for index in range(min(given, 3))]


def test_pinning_needs_a_gpu(loaders):
    loader, _ = loaders(Random(), loader={"pin": True})
    assert not loader.pin_memory
