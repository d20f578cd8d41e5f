import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, Dataset

from attnmix.training.loader import ReproducibleItems
from attnmix.training.repeats import RepeatedOrder


class Numbers(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index, torch.rand(()).item()


def order_of(size=24, *, repeats=3, batch_size=2, num_processes=1, seed=0, epoch=0):
    items = ReproducibleItems(Numbers(size), seed=0)
    items.set_epoch(epoch)
    order = RepeatedOrder(items, repeats=repeats, batch_size=batch_size, num_processes=num_processes, seed=seed)
    return items, order


@pytest.mark.parametrize("size", [1, 7, 24, 25])
@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_an_epoch_is_as_long_as_the_data_and_holds_no_view_twice(size, repeats, num_processes):
    _, order = order_of(size, repeats=repeats, num_processes=num_processes)
    found = list(order)
    assert len(found) == len(order) == len(set(found)) == size
    counts = torch.bincount(torch.tensor(found) % size, minlength=size)
    assert (counts > 0).sum() == -(-size // repeats)
    assert counts.max() == min(repeats, size)


def test_seed_and_epoch_decide():
    first = list(order_of()[1])
    torch.rand(3)
    assert list(order_of()[1]) == first
    assert list(order_of(seed=1)[1]) == list(order_of(epoch=1)[1]) != first  # added up, as Accelerate does


def test_a_view_is_the_same_image_augmented_anew():
    items, _ = order_of(size=5)
    first, second = items[2], items[7]
    assert first[0] == second[0] == 2
    assert first[1] != second[1]
    assert items[7] == second


def test_one_process_meets_the_views_side_by_side():
    _, order = order_of()
    images = [index % 24 for index in order]
    assert all(len(set(images[start : start + 3])) == 1 for start in range(0, 24, 3))


@pytest.mark.parametrize("repeats", [2, 3])
def test_processes_meet_an_image_at_the_same_step_but_not_in_one_process(repeats):
    """Three processes, batches of four, dealt out by Accelerate: a step's twelve places hold whole groups."""
    _, order = order_of(36, repeats=repeats, batch_size=4, num_processes=3)
    batches = BatchSampler(order, 4, drop_last=False)
    shards = [list(BatchSamplerShard(batches, 3, process)) for process in range(3)]
    assert [len(shard) for shard in shards] == [3, 3, 3]
    for step in zip(*shards, strict=True):
        images = [{index % 36 for index in batch} for batch in step]
        assert [len(own) for own in images] == [4, 4, 4]  # no image twice in one process
        assert len(set.union(*images)) == 12 // repeats
