"""The cost of a step on many GPUs, beside sums done by hand."""

import math

import pytest

from attnmix.benchmark.scaling import Cluster, Work, all_reduce_seconds, forecast

CLUSTER = Cluster(gpus_per_node=8, within=100e9, between=10e9, latency=1e-5)
WORK = Work(parameters=22_000_000, batch_size=128, seconds=0.1)


def test_one_gpu_waits_for_nobody():
    found = forecast(WORK, 1, CLUSTER)
    assert found.summing == found.exposed == 0
    assert found.images_per_second == pytest.approx(1280)
    assert found.efficiency == 1
    assert found.held_back_by == "compute"


def test_the_ring_and_its_hops():
    # 88 MB: 2 * 7/8 * 88e6 / 100e9 and 6 hops within a node; 2 * 63/64 * 88e6 / 10e9 and 12 hops between
    assert all_reduce_seconds(88e6, 8, CLUSTER) == pytest.approx(0.00154 + 6e-5)
    assert all_reduce_seconds(88e6, 64, CLUSTER) == pytest.approx(0.017325 + 12e-5)


def test_what_the_backward_pass_hides():
    found = forecast(WORK, 64, CLUSTER)
    last = all_reduce_seconds(25 * 2**20, 64, CLUSTER)
    assert found.exposed == pytest.approx(last)  # all but the last bucket
    assert found.seconds == pytest.approx(0.1 + last)
    assert found.efficiency == pytest.approx(0.1 / (0.1 + last))
    slow = forecast(Work(22_000_000, 8, 0.006), 64, CLUSTER)
    assert slow.exposed == pytest.approx(0.017325 + 12e-5 - 0.004)
    assert slow.held_back_by == "all-reduce"


def test_input_that_comes_too_slowly():
    found = forecast(WORK, 8, Cluster(image_rate=640))
    assert found.input == pytest.approx(0.2)
    assert found.seconds == pytest.approx(0.2)
    assert found.efficiency == pytest.approx(0.5)
    assert found.held_back_by == "input"
    assert forecast(WORK, 8, Cluster(image_rate=math.inf)).held_back_by == "compute"


@pytest.mark.parametrize("gpus", [0, -1, 12])
def test_no_whole_nodes(gpus):
    with pytest.raises(ValueError, match=f"{gpus} GPUs: want 1 to 8, or a multiple of a node's 8"):
        forecast(WORK, gpus, CLUSTER)
