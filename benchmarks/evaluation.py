"""What the accuracy question costs beside a bare loop over the same loader: forward passes and nothing else.

python benchmarks/evaluation.py [--model NAME] [--images N] [--batch_size N] [--rounds N] [--device cpu]
"""

import argparse
from pathlib import Path

import timm
import torch
from rich.progress import Progress
from timm.data import resolve_data_config
from torch.utils.data import DataLoader

from attnmix.benchmark.device import chosen_device, pinned_threads
from attnmix.benchmark.machine import describe_machine
from attnmix.benchmark.rounds import measure_rounds, ratio_interval
from attnmix.data import LabelledImages
from attnmix.evaluation import accuracy
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.subject import Subject
from attnmix.report import print_table, write_benchmark

HEAD = ["", "ratio to the bare loop", "95 % interval", "images/s"]


class RandomImages(LabelledImages):
    """As many images as are asked for, in the memory of 64: what is loaded costs both loops the same."""

    def __init__(self, count: int, size: tuple[int, int, int], classes: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.count = count
        self.pixels = torch.randn(min(count, 64), *size, generator=generator)
        self.class_names = [str(number) for number in range(classes)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pixels[index % len(self.pixels)], index % self.num_classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    device = chosen_device(arguments.device)

    model = timm.create_model(arguments.model).to(device).eval()
    config = resolve_data_config(model=model)
    images = RandomImages(arguments.images, config["input_size"], model.num_classes)
    subject = Subject(
        arguments.model,
        model,
        images.class_names,
        config["input_size"],
        config["mean"],
        config["std"],
        lambda: model,
    )
    exam = Exam(subject, ImageSet(images), batch_size=arguments.batch_size)

    @torch.no_grad()
    def bare() -> None:
        for pixels, labels in DataLoader(images, batch_size=arguments.batch_size):
            model(pixels.to(device)).argmax(dim=1).eq(labels.to(device)).sum()

    actions = {"bare loop": bare, "accuracy question": lambda: accuracy.QUESTION.ask(exam)}
    with pinned_threads(arguments.threads), Progress(transient=True) as bar:
        task = bar.add_task(arguments.model, total=None)
        seconds = measure_rounds(
            actions,
            device=device,
            rounds=arguments.rounds,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    rows, body = [], []
    for name, took in seconds.items():
        found = ratio_interval(took, seconds["bare loop"])
        speed = arguments.images / float(sorted(took)[len(took) // 2])
        rows.append({"name": name, **vars(found), "images/s": speed, "seconds": took.tolist()})
        interval = "" if name == "bare loop" else f"{found.low:.3f}-{found.high:.3f}"
        body.append([name, f"{found.ratio:.3f}", interval, f"{speed:.0f}"])
    words = ("model", "images", "batch_size", "rounds", "threads")
    command = "python benchmarks/evaluation.py " + " ".join(
        f"--{word} {getattr(arguments, word)}" for word in words
    )
    settings = {
        "command": command,
        "machine": describe_machine(device, threads=arguments.threads),
        "notes": ["both loops read the same loader; the question also counts classes and calibrates"],
    }
    print_table(HEAD, body, notes=settings["notes"])
    stem = f"evaluation-{device.type}"
    print(*write_benchmark(arguments.out, stem, settings=settings, rows=rows, head=HEAD, body=body), sep="\n")


if __name__ == "__main__":
    main()
