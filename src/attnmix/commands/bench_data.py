"""Images per second that the loader delivers, against those that the model consumes.

The loader runs with no model behind it, then training steps of the recipe's method run on one batch at hand: the
slower of the two holds training back. Give the recipe as to `attnmix train`, on the machine that will train.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from attnmix.training.arguments import add_recipe_arguments, recipe_from_arguments
from attnmix.training.recipe import Recipe

HEAD = ("workers", "loader images/s", "model images/s", "training at best", "held back by")

EXAMPLES = """
examples:
  attnmix bench data quickstart
  attnmix bench data quickstart --workers_list 0,1,2 --out runs/data
  attnmix bench data folder --data path/to/images --method smmix --workers_list 4,8 --precision bf16
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add RECIPE, how long to measure, --workers_list, --out and every key of the recipe."""
    parser.add_argument(
        "--batches", type=int, default=30, help="that the loader delivers; epochs repeat if need be"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="after which fewer batches must do")
    parser.add_argument("--steps", type=int, default=10, help="training steps on one batch")
    parser.add_argument(
        "--workers_list", default=None, help="values of loader.workers, as in 0,2,4; default: the recipe's"
    )
    parser.add_argument("--out", default=None, metavar="DIR", help="folder for data.json and data.md")
    add_recipe_arguments(parser)


def run(arguments: Namespace) -> int:
    """Measure both, print the table and what follows from it."""
    recipe = recipe_from_arguments(arguments)
    for name in ("batches", "steps"):
        if arguments[name] < 1:
            raise ValueError(f"{name} is {arguments[name]}, but must be 1 or more")
    if not arguments.seconds > 0:
        raise ValueError(f"seconds is {arguments.seconds}, but must be above 0")
    workers_list = parse_workers(arguments.workers_list, recipe)

    import torch

    from attnmix.benchmark.data import together, verdict
    from attnmix.benchmark.device import pinned_threads
    from attnmix.benchmark.machine import describe_machine
    from attnmix.commands.data_rates import measure_rates
    from attnmix.report.benchmark import print_table, write_benchmark

    threads = recipe.threads or torch.get_num_threads()
    with pinned_threads(threads):
        loaders, model, device = measure_rates(
            recipe, workers_list, batches=arguments.batches, seconds=arguments.seconds, steps=arguments.steps
        )
    cores = os.cpu_count() or 1
    rows: list[dict[str, Any]] = []
    for workers, loader in loaders.items():
        rows.append(
            {
                "workers": workers,
                "loader_images_per_second": loader.per_second,
                "model_images_per_second": model.per_second,
                "training_images_per_second": together(loader, model, workers=workers),
                "held_back_by": "loader" if loader.per_second < model.per_second else "model",
                "batches": loader.batches,
                "epochs": loader.passes,
                "verdict": verdict(loader, model, workers=workers, cores=cores),
            }
        )
    rates = ("loader_images_per_second", "model_images_per_second", "training_images_per_second")
    body = [[str(row["workers"]), *(f"{row[rate]:.0f}" for rate in rates), row["held_back_by"]] for row in rows]
    notes = [row["verdict"] for row in rows]
    notes += [
        f"With loader.workers {row['workers']}, {row['batches']} batches went through {row['epochs']} epochs: "
        "starting each is part of the rate."
        for row in rows
        if row["epochs"] > 1
    ]
    print_table(HEAD, body, notes=notes)
    if arguments.out is not None:
        written = write_benchmark(
            Path(arguments.out),
            "data",
            settings={
                "command": shlex.join(["attnmix", *sys.argv[1:]]),
                "machine": describe_machine(device, threads=threads),
                "notes": notes,
                **{name: getattr(recipe, name) for name in ("data", "model", "method", "batch_size", "precision")},
                "steps": arguments.steps,
            },
            rows=rows,
            head=HEAD,
            body=body,
        )
        print(*written, sep="\n")
    return 0


def parse_workers(typed: str | None, recipe: Recipe) -> list[int]:
    """Read --workers_list; None is the recipe's own.

    Raises:
        ValueError: anything but different whole numbers with commas between.
    """
    if typed is None:
        return [recipe.loader.workers]
    try:
        workers = [int(count) for count in str(typed).split(",")]
    except ValueError as error:
        raise ValueError(f"workers_list {typed!r}: want whole numbers with commas between, as in 0,2,4") from error
    if min(workers) < 0 or len(set(workers)) < len(workers):
        raise ValueError(f"workers_list {typed!r}: each must be 0 or more and named once")
    return workers
