"""Even batches of uneven shares, in real processes; and the line on who saw how much."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset

from attnmix.training.shares import EvenedBatches, expected_samples, told_shares


class Share(IterableDataset):
    num_samples = 50

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        yield from ((torch.tensor([float(item)]), item) for item in self.items)


def gathered(accelerator, items):
    """Labels and images as `gather_for_metrics` gives them, of `items` in batches of four."""
    loader = EvenedBatches(DataLoader(Share(items), batch_size=4), accelerator)
    labels, images = [], []
    for batch in loader:
        both = accelerator.gather_for_metrics(batch)
        images += both[0].flatten().int().tolist()
        labels += both[1].tolist()
    assert images == labels
    assert not accelerator.gradient_state.in_dataloader
    return labels


def test_one_process_has_every_item_once():
    assert gathered(Accelerator(cpu=True), range(10)) == list(range(10))
    assert gathered(Accelerator(cpu=True), []) == []


SIZES = ([8, 8, 8], [10, 9, 0], [0, 0, 7], [1, 0, 0], [0, 0, 0], [3, 12, 5], [5, 5, 2])


def uneven_shares():
    """Of one process of three: the labels gathered for each of `SIZES`, and the line on who saw how much."""
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    starts = [sum(sizes[:rank]) for sizes in SIZES]
    found = [
        gathered(accelerator, range(first, first + sizes[rank]))
        for first, sizes in zip(starts, SIZES, strict=True)
    ]
    line = told_shares(accelerator, 10 + rank, expected=33, rounding=4)
    accelerator.end_training()
    return found, line


@pytest.mark.slow
def test_uneven_shares_of_three_processes(nursery):
    found, line = nursery.ranks(3, uneven_shares)[0]
    for sizes, labels in zip(SIZES, found, strict=True):
        assert sorted(labels) == list(range(sum(sizes))), sizes
    assert line == (
        "samples seen in the first epoch: rank 0 10, rank 1 11, rank 2 12 of 33; warning: the ranks differ by 2, "
        "and each should see as many"
    )


def told(*counts, **options):
    accelerator = SimpleNamespace(device="cpu", gather=lambda seen: torch.tensor(counts))
    return told_shares(accelerator, counts[0], **options)


@pytest.mark.parametrize(
    ("counts", "options", "line"),
    [
        ((1000, 1000), {"expected": 2000, "rounding": 64}, "rank 0 1000, rank 1 1000 of 2000"),
        ((40,), {"expected": 40, "rounding": 8}, "40 of 40"),
        ((20, 20), {}, "rank 0 20, rank 1 20"),
        ((5,) * 9, {"expected": 45}, "9 ranks, 5 to 5 each of 45"),
        (
            (24, 24),
            {"expected": 40, "rounding": 16},
            "rank 0 24, rank 1 24 of 40 (48 in all, 8 more than the data set holds: an epoch is of whole batches)",
        ),
        (
            (24, 24),
            {"expected": 32, "rounding": 16},
            "rank 0 24, rank 1 24 of 32; warning: 48 in all, 16 more than the data set holds: is each shard read "
            "once?",
        ),
        (
            (16, 8),
            {"expected": 48, "rounding": 16},
            "rank 0 16, rank 1 8 of 48; warning: the ranks differ by 8, and each should see as many; warning: 24 "
            "in all, 24 fewer than the data set holds: is the stated number of samples right?",
        ),
    ],
)
def test_the_line_on_shares(counts, options, line):
    assert told(*counts, **options) == f"samples seen in the first epoch: {line}"


def test_what_an_epoch_may_differ_by():
    parts = {"batch_size": 4, "processes": 2}
    assert expected_samples(range(30), workers=3, **parts) == {"expected": 30, "rounding": 8}
    assert expected_samples(Share([]), workers=3, **parts) == {"expected": 50, "rounding": 24}
    assert expected_samples(Share([]), workers=0, **parts)["rounding"] == 8
