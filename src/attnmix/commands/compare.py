"""Train several methods alike and report what each did.

Each method starts from the same initial weights and sees the same images in the same order, once per seed. One
that learns from a teacher and names none is taught by the comparison's own run of none with the same seed.

The report has a table, accuracy against training time, learning curves, what each method does to the same pairs of
images, a gallery with attention and label weights, and confusion matrices. Interrupted, the same command goes on
where it stopped.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from attnmix.training.arguments import add_recipe_arguments, recipe_from_arguments
from attnmix.training.recipe import Recipe

if TYPE_CHECKING:
    from attnmix.commands.method_specs import MethodSpec
    from attnmix.commands.runs import Run

NAMED = 8  # methods in a title
MEASURING = "timing steps, judging labels, drawing pictures"
EXAMPLES = """
examples:
  attnmix compare quickstart --methods none,cutmix,transmix,smmix --seeds 0,1 --out runs/compared
  attnmix compare quickstart --methods cutmix:mixup_prob=0.5,smmix,smmix:fine=false --seeds 0 --out runs/parts
  attnmix compare quickstart --methods all --out runs/all
  attnmix compare folder --data path/to/images --methods cutmix,smmix --seeds 0,1,2 --out runs/mine
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add RECIPE, --methods, --seeds, --jobs, --out and every key of the recipe but method and seed."""
    parser.add_argument(
        "--methods",
        required=True,
        help="comma-separated; options after colons, as in cutmix:mixup_prob=0.5; or all",
    )
    parser.add_argument("--seeds", default="0", help="comma-separated, as in 0,1,2")
    parser.add_argument(
        "--jobs", type=int, default=None, help="runs at a time; default: one per CPU core, or 1 on a GPU"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the report and the runs")
    add_recipe_arguments(parser, skip=("method", "seed"))


def run(arguments: Namespace) -> int:
    """Train what is not trained yet, measure, print the table and the report's path."""
    # torch, timm and matplotlib take seconds to import: --help and wrong words do without
    from attnmix.commands.method_specs import MethodSpec, parse_methods

    recipe = recipe_from_arguments(arguments)
    specs = parse_methods(arguments.methods, shared=recipe.method_options)
    check_teachers(specs, recipe)
    seeds = parse_seeds(arguments.seeds)
    recipe, jobs = share_cores(recipe, arguments.jobs, runs=len(specs) * len(seeds))
    out = Path(arguments.out)
    console = Console()

    from attnmix.commands.runs import Run, check_methods, load_evaluation
    from attnmix.commands.workers import do_runs
    from attnmix.report import format_summary

    check_methods([spec.taught_by("self") for spec in specs], recipe)

    def create_run(spec: MethodSpec, seed: int) -> Run:
        maps = recipe.label_maps if spec.needs_label_maps else None
        spec = spec.taught_by(str(out / "runs" / f"none-seed{seed}" / "model"), maps=maps is not None)
        settings = replace(recipe, method=spec.name, seed=seed, method_options=spec.options, label_maps=maps)
        return Run(spec, settings, out / "runs" / f"{spec.folder}-seed{seed}")

    runs = [create_run(spec, seed) for seed in seeds for spec in specs]
    if any(run.spec not in specs for run in runs):  # teachers first
        do_runs([run for run in runs if run.spec.label == "none"], jobs=jobs, say=console.print)
    entries = do_runs(runs, jobs=jobs, say=console.print)
    named = ", ".join(spec.label for spec in specs) if len(specs) <= NAMED else f"{len(specs)} methods"
    title = f"attnmix: {named}"
    with console.status(MEASURING):
        data = load_evaluation(recipe)
        results = measure(runs, entries, data, title=title)
        page = write_results(results, runs, data, out)
    console.print(format_summary(results))
    console.print(f"report: {page}", soft_wrap=True, highlight=False)
    return 0


def check_teachers(specs: "Sequence[MethodSpec]", recipe: Recipe) -> None:
    """Raise ValueError where a method lacks a teacher and the comparison has no run that could be one."""
    if any(spec.label == "none" for spec in specs):
        return
    for spec in specs:
        for option in spec.missing_teachers(maps=recipe.label_maps is not None):
            raise ValueError(
                f"{spec.label} learns from a teacher: name a model or the folder of a run, as in "
                f"{spec.name}:{option}=path/to/run, or compare with none too, whose runs then teach"
            )


def parse_seeds(typed: str) -> list[int]:
    """Read --seeds.

    Raises:
        ValueError: anything but different whole numbers with commas between.
    """
    try:
        seeds = [int(seed) for seed in str(typed).split(",")]
    except ValueError as error:
        raise ValueError(f"seeds {typed!r}: want whole numbers with commas between, as in 0,1,2") from error
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {typed!r}: each must be 0 or more and named once")
    return seeds


def share_cores(recipe: Recipe, jobs: int | None, *, runs: int) -> tuple[Recipe, int]:
    """The recipe with each run's threads, and how many run at a time; None: as suits the device.

    Raises:
        ValueError: fewer jobs than one.
    """
    jobs = jobs if jobs is not None else _default_jobs(recipe)
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, but must be 1 or more")
    jobs = min(jobs, runs)
    if recipe.threads is None and jobs > 1:
        recipe = replace(recipe, threads=max(1, (os.cpu_count() or 1) // jobs))
    return recipe, jobs


def measure(runs: "Sequence[Run]", entries: Sequence[dict[str, Any]], data: Any, *, title: str) -> dict[str, Any]:
    """The results of `runs`, all of one recipe but for method and seed; see `collect_results`."""
    from attnmix.commands.collect import collect_results

    command = shlex.join(["attnmix", *sys.argv[1:]])
    return {"title": title, "command": command, **collect_results(runs, entries, data)}


def write_results(results: dict[str, Any], runs: "Sequence[Run]", data: Any, out: Path) -> Path:
    """Write results.json, the figures and the page; return the page's path."""
    from attnmix.commands.collect import image_pairs, pictures
    from attnmix.report import write_report

    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    return write_report(results, pictures(runs, data), out, pairs=image_pairs(runs, data))


def _default_jobs(recipe: Recipe) -> int:
    import torch

    on_cpu = recipe.device == "cpu" or (recipe.device == "auto" and not torch.cuda.is_available())
    return (os.cpu_count() or 1) if on_cpu else 1
