"""What a training step costs on many GPUs, worked out from what one costs: compute, all-reduce, input.

A model, not a measurement: each term is a line of arithmetic on figures that can be measured on one node.
"""

import math
from dataclasses import dataclass

__all__ = ["Cluster", "Forecast", "Work", "all_reduce_seconds", "forecast"]

BACKWARD = 2 / 3  # of a step's arithmetic; gradients are summed meanwhile, from the head down
# bytes: DistributedDataParallel sums gradients in buckets, the last with nothing to hide behind
BUCKET = 25 * 2**20
FP32 = 4  # bytes of a gradient


@dataclass(frozen=True)
class Cluster:
    """Nodes of GPUs.

    Attributes:
        gpus_per_node: GPUs that reach each other without the network.
        within: bytes a second that a GPU sends to others of its node.
        between: bytes a second that a GPU sends over the network.
        latency: seconds of one hop.
        image_rate: images a second that the CPU cores of one GPU decode and augment.
    """

    gpus_per_node: int = 8
    within: float = 400e9
    between: float = 50e9
    latency: float = 1e-5
    image_rate: float = math.inf


@dataclass(frozen=True)
class Work:
    """What one GPU does in a step.

    Attributes:
        parameters: of the model.
        batch_size: images.
        seconds: forward, backward and update, with everything at hand.
    """

    parameters: int
    batch_size: int
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """A step on many GPUs.

    Attributes:
        gpus: how many.
        summing: seconds of the gradients' all-reduce, hidden or not.
        exposed: of these, what the backward pass does not hide.
        input: seconds in which a GPU's cores make its next batch.
        seconds: of the step.
        images_per_second: of all GPUs.
        efficiency: to as many single ones.
        held_back_by: compute, all-reduce or input.
    """

    gpus: int
    summing: float
    exposed: float
    input: float
    seconds: float
    images_per_second: float
    efficiency: float
    held_back_by: str


def all_reduce_seconds(size: float, gpus: int, cluster: Cluster) -> float:
    """Seconds to sum `size` bytes over all GPUs: a ring moves 2 (n - 1) / n of them, a tree 2 log2 n hops."""
    if gpus == 1:
        return 0.0
    speed = cluster.within if gpus <= cluster.gpus_per_node else cluster.between
    return 2 * (gpus - 1) / gpus * size / speed + 2 * math.ceil(math.log2(gpus)) * cluster.latency


def forecast(work: Work, gpus: int, cluster: Cluster) -> Forecast:
    """A step of DistributedDataParallel with the same batch on every GPU.

    Raises:
        ValueError: no GPU, or GPUs that fill no whole node.
    """
    if gpus < 1 or (gpus > cluster.gpus_per_node and gpus % cluster.gpus_per_node):
        raise ValueError(
            f"{gpus} GPUs: want 1 to {cluster.gpus_per_node}, or a multiple of a node's {cluster.gpus_per_node}"
        )
    size = FP32 * work.parameters
    summing = all_reduce_seconds(size, gpus, cluster)
    last = all_reduce_seconds(min(size, BUCKET), gpus, cluster)
    exposed = max(summing - BACKWARD * work.seconds, last)
    waiting = work.batch_size / cluster.image_rate
    seconds = max(work.seconds + exposed, waiting)
    reason = "input" if waiting > work.seconds + exposed else "all-reduce" if exposed > work.seconds else "compute"
    return Forecast(
        gpus=gpus,
        summing=summing,
        exposed=exposed,
        input=waiting,
        seconds=seconds,
        images_per_second=gpus * work.batch_size / seconds,
        efficiency=work.seconds / seconds,
        held_back_by=reason,
    )
