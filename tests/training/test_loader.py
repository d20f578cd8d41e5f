import os
import random
import signal
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from attnmix.training.faults import explain_dead_workers
from attnmix.training.loader import (
    ReproducibleItems,
    ReproducibleStream,
    create_loaders,
    epoch_batches,
    set_epoch,
)
from attnmix.training.setup import create_accelerator
from attnmix.training.shares import EvenedBatches


class Random(Dataset):
    """Items that draw from all three global generators."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()]), index


class Stream(IterableDataset):
    epoch = share = None
    can_be_shared = True

    def __len__(self):
        return 6

    def __iter__(self):
        yield from ((torch.tensor([float(index)]), index) for index in range(6))

    def set_epoch(self, epoch):
        self.epoch = epoch

    def share_out(self, **share):
        self.share = share
        return share["workers"]


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
    assert stream.epoch == 4
    assert stream.share == {"rank": 0, "processes": 1, "workers": 0, "seed": 0}
    stream = Stream()
    loaders(stream, augment=AUGMENT, seed=2)
    assert stream.share["seed"] == 200_006


def test_a_stream_in_several_processes(tiny):
    accelerator = SimpleNamespace(num_processes=2, process_index=1, device=torch.device("cpu"))
    train_data, eval_data = Stream(), Stream()
    loader, eval_loader = create_loaders(train_data, eval_data, tiny(), accelerator)
    assert train_data.share == eval_data.share == {"rank": 1, "processes": 2, "workers": 0, "seed": 0}
    assert isinstance(loader, DataLoader)
    assert isinstance(eval_loader, EvenedBatches)
    train_data.can_be_shared = False
    with pytest.raises(
        ValueError, match="digits-in-scenes is a stream of a kind which 2 processes cannot share: tr"
    ):
        create_loaders(train_data, eval_data, tiny(), accelerator)


class RandomStream(Stream):
    """Ten items of a share each, that draw from all three global generators."""

    def __iter__(self):
        worker = get_worker_info()
        data = Random()
        for index in range(10):
            yield data[index + (0 if worker is None else 100 * worker.id)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_streams_items_depend_on_seed_epoch_rank_and_position(loaders, workers):
    def draws(epoch, seed=0, **overrides):
        options = {"augment": AUGMENT, "loader": {"workers": workers}, "seed": seed}
        loader, _ = loaders(RandomStream(), **options, **overrides)
        before = torch.rand(())
        found = [items(loader, which) for which in range(epoch + 1)][-1] if epoch < 2 else items(loader, 1)
        return found, before

    first, _ = draws(0)
    second, _ = draws(1)
    assert torch.equal(draws(2)[0], second)  # straight into the second epoch
    assert len(first[:, 1].unique()) == len(first)
    for column in (1, 2, 3):
        assert not torch.equal(first[:, column], second[:, column])
        assert not torch.equal(first[:, column], draws(0, seed=1)[0][:, column])
    ranks = [next(iter(ReproducibleStream(RandomStream(), seed=0, rank=rank)))[0] for rank in (0, 1)]
    assert not torch.equal(*ranks)


def test_a_stream_leaves_the_global_generators_alone(loaders):
    loader, _ = loaders(RandomStream(), augment=AUGMENT)
    state = torch.get_rng_state()
    items(loader, 0)
    assert torch.equal(torch.get_rng_state(), state)
    plain, _ = loaders(RandomStream(), augment={"no_aug": True})
    assert isinstance(plain.dataset, RandomStream)


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


@pytest.mark.parametrize(("data", "repeats"), [(Random, 1), (Random, 3), (RandomStream, 1)])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_can_begin_in_its_midst(loaders, data, workers, repeats):
    options = {"augment": AUGMENT, "loader": {"workers": workers}, "aug_repeats": repeats}

    def batches(loader, epoch, first=0):
        set_epoch(loader, epoch)
        return list(epoch_batches(loader, 3, first=first))

    whole, _ = loaders(data(), **options)
    expected = [batches(whole, epoch) for epoch in range(3)]
    assert [index for index, _, _ in expected[1]] == [0, 1, 2]
    for first in (1, 2, 3):
        loader, _ = loaders(data(), **options)  # as after a restart
        for epoch in (1, 2):  # the epoch after the resumed one is whole again
            found = batches(loader, epoch, first if epoch == 1 else 0)
            wanted = expected[epoch][first:] if epoch == 1 else expected[epoch]
            assert [(index, is_last) for index, _, is_last in found] == [
                (index, is_last) for index, _, is_last in wanted
            ]
            for (_, got, _), (_, want, _) in zip(found, wanted, strict=True):
                assert torch.equal(got[0], want[0])
                assert torch.equal(got[1], want[1])


def test_what_is_skipped_is_not_read(loaders):
    class Counted(Random):
        read: ClassVar[list[int]] = []

        def __getitem__(self, index):
            self.read.append(index)
            return super().__getitem__(index)

    loader, _ = loaders(Counted(), augment=AUGMENT)
    set_epoch(loader, 0)
    assert len(list(epoch_batches(loader, 3, first=2))) == 1
    assert len(Counted.read) == 2  # of 10, in batches of 4


class Deadly(Random):
    """Its second batch kills the worker that reads it."""

    def __getitem__(self, index):
        if index >= 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_killed_worker_says_what_to_do():
    loader = DataLoader(Deadly(), batch_size=4, num_workers=1)
    message = (
        r"DataLoader worker \(pid.*\d+\).*: most likely the memory .*\(/dev/shm\) ran out; lower loader.workers"
    )
    with pytest.raises(OSError, match=message), explain_dead_workers():
        list(epoch_batches(loader, 3))


def test_only_dead_workers_are_explained():
    with pytest.raises(RuntimeError, match="^shapes differ$"), explain_dead_workers():
        raise RuntimeError("shapes differ")
    text = "DataLoader worker (pid 7) is killed by signal: Killed. "
    message = r"^DataLoader worker \(pid 7\) is killed by signal: Killed: most likely"
    with pytest.raises(OSError, match=message), explain_dead_workers():
        raise RuntimeError(text)


def test_pinning_needs_a_gpu(loaders):
    loader, _ = loaders(Random(), loader={"pin": True})
    assert not loader.pin_memory
