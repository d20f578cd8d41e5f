"""What more processes bring: training throughput of one and of several here, a forecast for 8, 64 and 512 GPUs.

python benchmarks/scaling.py [--processes 2] [--model NAME] [--batch_size N] [--rounds N] [--out DIR]

One process alone, several without a word to each other, with their gradients summed (DDP), and in parts (FSDP2)
take turns in shuffled rounds. Beside it: the sum of the gradients by itself, and how fast a core reads JPEGs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.distributed as dist
from PIL import Image
from torch.nn.parallel import DistributedDataParallel

import attnmix
from attnmix.benchmark.machine import describe_machine
from attnmix.benchmark.rounds import ratio_interval
from attnmix.benchmark.scaling import Cluster, Work, forecast
from attnmix.data import create_transforms
from attnmix.data.folder import open_folder
from attnmix.report import print_table, write_benchmark
from attnmix.training.sharding import shard

PHOTO = (500, 375)  # as most of ImageNet
GPUS = (8, 64, 512)
MEASURED = ["", "processes", "images/s", "step / alone", "95 % interval"]
FORECAST = ["model", "GPUs", "all-reduce, ms", "not hidden, ms", "images/s", "efficiency", "held back by"]
CLUSTER = Cluster()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--batch_size", type=int, default=8, help="images of one process")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--gpu_tflops", type=float, default=150.0, help="what a step sustains on a GPU of the forecast"
    )
    parser.add_argument("--cores_per_gpu", type=int, default=16, help="that read images, of the forecast")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(arguments.processes), *sys.argv]
    sys.exit(subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode)


# ------------------------------------------------------------ measured


def measure(arguments: argparse.Namespace) -> None:
    """One process of those that torchrun started; the first writes the results."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    actions, parameters = make_actions(arguments.model, arguments.batch_size, device)
    seconds = wall_rounds(actions, rounds=arguments.rounds, device=device)
    if dist.get_rank() == 0:
        publish(arguments, device, seconds, parameters)
    dist.barrier()
    actions.clear()  # DistributedDataParallel, freed after the group, may wait for ever
    dist.destroy_process_group()


def make_actions(name: str, batch_size: int, device: torch.device) -> tuple[dict[str, Callable[[], Any]], int]:
    """What is timed, by name; and the model's parameters."""
    torch.manual_seed(0)
    size = timm.create_model(name).pretrained_cfg["input_size"]
    images = torch.randn(batch_size, *size, device=device)
    labels = torch.arange(batch_size, device=device)

    def task() -> attnmix.MixTask:
        model = timm.create_model(name).to(device)
        return attnmix.MixTask(model, attnmix.create_method("cutmix", num_classes=model.num_classes))

    def step(module: torch.nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(module.parameters())

        def action() -> None:
            module(images, labels)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()

        return action

    alone, whole, gathered, parted = (task() for _ in range(4))
    shard(gathered, keep_gathered=True)
    shard(parted, keep_gathered=False)
    own = step(alone)
    count = sum(parameter.numel() for parameter in alone.parameters())
    gradients = torch.zeros(count, device=device)
    return {
        "alone": lambda: own() if dist.get_rank() == 0 else None,
        "side by side": own,
        "DDP": step(DistributedDataParallel(whole)),
        "FSDP2 shard_grad_op": step(gathered),
        "FSDP2 full_shard": step(parted),
        "all-reduce": lambda: dist.all_reduce(gradients),
    }, count


def wall_rounds(
    actions: dict[str, Callable[[], Any]], *, rounds: int, device: torch.device, warmup: int = 2
) -> dict[str, np.ndarray]:
    """Wall-clock seconds `[rounds]` of each action, all processes beginning together, in one shuffled order."""
    random = np.random.default_rng(0)
    names = list(actions)
    seconds = {name: np.zeros(rounds) for name in names}
    for turn in range(-warmup, rounds):
        for column in random.permutation(len(names)):
            wait(device)
            before = time.perf_counter()
            actions[names[column]]()
            if names[column] != "alone":
                wait(device)
            elif device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds[names[column]][turn] = time.perf_counter() - before
    return seconds


def wait(device: torch.device) -> None:
    """For this process's device, and for all the others."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def reading_rate(count: int = 48) -> float:
    """Photographs a second that one core decodes, crops and augments as DeiT does."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "one"
        place.mkdir()
        for number in range(count):
            coarse = Image.fromarray(random.integers(0, 255, (24, 32, 3), dtype=np.uint8))
            coarse.resize(PHOTO, Image.Resampling.BICUBIC).save(place / f"{number}.jpg", quality=90)
        augment = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25}
        transform, _ = create_transforms((3, 224, 224), mean=(0.5,) * 3, std=(0.5,) * 3, augment=augment)
        photos = open_folder(Path(folder), options={}, transform=transform)
        before = time.process_time()
        for number in range(count):
            photos[number]
        return count / (time.process_time() - before)


# ------------------------------------------------------------ told


def publish(
    arguments: argparse.Namespace, device: torch.device, seconds: dict[str, np.ndarray], parameters: int
) -> None:
    """Write what was measured, and the forecast."""
    world = dist.get_world_size()
    rows, body = [], []
    for name, took in seconds.items():
        found = ratio_interval(took, seconds["alone"])
        processes = 1 if name == "alone" else world
        speed = processes * arguments.batch_size / float(np.median(took))
        rows.append(
            {"name": name, "processes": processes, "images/s": speed, **vars(found), "seconds": took.tolist()}
        )
        interval = "" if name == "alone" else f"{found.low:.3f}-{found.high:.3f}"
        body.append(
            [name, str(processes), "" if name == "all-reduce" else f"{speed:.1f}", f"{found.ratio:.3f}", interval]
        )
    rate = reading_rate()
    summing = float(np.median(seconds["all-reduce"]))
    words = ("processes", "model", "batch_size", "rounds")
    settings = {
        "command": "python benchmarks/scaling.py "
        + " ".join(f"--{word} {getattr(arguments, word)}" for word in words),
        "machine": describe_machine(device, threads=1),
        "reading_rate": rate,
        "notes": [
            f"{parameters / 1e6:.1f} million parameters: the all-reduce of {4 * parameters / 1e6:.0f} MB takes "
            f"{1e3 * summing:.0f} ms. One core decodes, crops and augments {rate:.0f} photographs of {PHOTO[0]} x "
            f"{PHOTO[1]} a second. Seconds are wall-clock."
        ],
    }
    print_table(MEASURED, body, notes=settings["notes"])
    stem = f"scaling-{device.type}"
    print(*write_benchmark(arguments.out, stem, settings=settings, rows=rows, head=MEASURED, body=body), sep="\n")
    write_forecast(arguments, rate)


def write_forecast(arguments: argparse.Namespace, rate: float) -> None:
    """DDP on 8, 64 and 512 GPUs, by the reading rate of here and the assumptions that are named."""
    cluster = Cluster(image_rate=rate * arguments.cores_per_gpu)
    rows, body = [], []
    for name, batch_size in (
        ("deit_small_patch16_224", 128),
        ("deit_base_patch16_224", 128),
        ("vit_huge_patch14_224", 32),
    ):
        work, flops = gpu_work(name, batch_size, arguments.gpu_tflops * 1e12)
        for gpus in GPUS:
            found = forecast(work, gpus, cluster)
            rows.append({"model": name, "flops": flops, **vars(work), **vars(found)})
            body.append(
                [name, str(gpus), f"{1e3 * found.summing:.2f}", f"{1e3 * found.exposed:.2f}",
                 f"{found.images_per_second:,.0f}", f"{found.efficiency:.3f}", found.held_back_by]
            )  # fmt: skip
    settings = {
        "command": "python benchmarks/scaling.py",
        "notes": [
            f"Assumed: a step sustains {arguments.gpu_tflops:.0f} TFLOP/s on a GPU; {CLUSTER.gpus_per_node} GPUs "
            f"a node, {CLUSTER.within / 1e9:.0f} GB/s between two of a node and {CLUSTER.between / 1e9:.0f} GB/s "
            f"of network for each, {1e6 * CLUSTER.latency:.0f} us a hop; {arguments.cores_per_gpu} cores for each "
            f"GPU that read {rate:.0f} images a second each, as measured here."
        ],
    }
    print_table(FORECAST, body, notes=settings["notes"])
    print(
        *write_benchmark(arguments.out, "forecast", settings=settings, rows=rows, head=FORECAST, body=body),
        sep="\n",
    )


def gpu_work(name: str, batch_size: int, speed: float) -> tuple[Work, int]:
    """A step's arithmetic (two FLOPs a multiply-add, three forwards a step) at this speed."""
    from attnmix.benchmark.flops import count_flops

    with torch.device("meta"):
        model = timm.create_model(name)
        images = torch.empty(1, *model.pretrained_cfg["input_size"])
    flops = 3 * batch_size * count_flops(lambda: model(images))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Work(parameters, batch_size, flops / speed), flops


if __name__ == "__main__":
    main()
