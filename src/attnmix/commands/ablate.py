"""Train the rows of a paper's ablation table by one recipe; print the paper's numbers beside ours.

A preset names the table; each row of it is a method with its options. All rows start from the same initial weights
and see the same images in the same order, once per seed. Interrupted, the same command goes on where it stopped.
The report has the table, as Markdown too (ablation.md), and what `attnmix compare` reports.

Blocks that a table names by number stand at the same relative depth of the recipe's model. Options typed as
--method_options go under a row's own. The paper's numbers are from its own models and data: compare the
differences, and read them beside the spread over seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from attnmix.commands.ablations import (
    Preset,
    choose_providers,
    choose_rows,
    known_presets,
    load_preset,
    preset_title,
)
from attnmix.commands.compare import MEASURING, measure, parse_seeds, share_cores, write_results
from attnmix.training.arguments import add_recipe_arguments, recipe_from_arguments
from attnmix.training.reading import load_recipe

if TYPE_CHECKING:
    from attnmix.commands.ablation_rows import PlannedRow
    from attnmix.training import Recipe

EXAMPLES = """
examples:
  attnmix ablate smmix-table-7 quickstart --seeds 0,1 --out runs/table-7
  attnmix ablate smmix-table-a5 quickstart --rows 0,4 --epochs 20 --out runs/table-a5
  attnmix ablate smmix-table-9 quickstart --providers deit-t=runs/a/model,deit-s=runs/b/model --out runs/table-9
  attnmix ablate transmix-table-9 folder --data path/to/images --seeds 0,1,2 --out runs/mine
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add PRESET, RECIPE, --rows, --providers, --seeds, --jobs, --out and the recipe's keys."""
    width = max(len(name) for name in known_presets())
    listed = [f"  {name:{width}}  {preset_title(path)}" for name, path in known_presets().items()]
    parser.description = "\n".join([str(parser.description).rstrip(), "", "presets:", *listed])
    parser.add_argument("preset", help="the table: one of the presets above, or a YAML file like theirs")
    add_recipe_arguments(parser, skip=("method", "seed"))
    parser.add_argument("--rows", default=None, help="comma-separated numbers of rows, from 0; default: all")
    parser.add_argument(
        "--providers",
        default=None,
        metavar="KEY=MODEL,...",
        help="frozen models in place of the preset's: timm's names, or folders of exported runs",
    )
    parser.add_argument("--seeds", default="0", help="comma-separated, as in 0,1,2")
    parser.add_argument(
        "--jobs", type=int, default=None, help="runs at a time; default: one per CPU core, or 1 on a GPU"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the table, the report and the runs")


def run(arguments: Namespace) -> int:
    """Check every row on the recipe, train what is not trained yet, print the table and where it lies."""
    preset = load_preset(arguments.preset)
    numbers = choose_rows(preset, arguments.rows)
    providers = choose_providers(preset, arguments.providers)
    seeds = parse_seeds(arguments.seeds)
    recipe = recipe_from_arguments(arguments)
    typed = _typed_options(preset, numbers, recipe, load_recipe(arguments.recipe))
    out = Path(arguments.out)
    console = Console()

    from attnmix.commands.ablation_rows import rehearse
    from attnmix.commands.runs import Run, load_evaluation
    from attnmix.commands.workers import do_runs
    from attnmix.report import ablation_markdown, format_ablation

    with console.status("trying each row on the recipe's model"):
        data = load_evaluation(recipe)
        planned, specs = rehearse(
            preset,
            numbers,
            replace(recipe, method_options=typed),
            written=arguments.recipe,
            providers=providers,
            num_classes=data.num_classes,
        )
    recipe, jobs = share_cores(recipe, arguments.jobs, runs=len(specs) * len(seeds))
    runs = [
        Run(
            spec,
            replace(recipe, method=spec.name, seed=seed, method_options=spec.options),
            out / "runs" / f"{row.folder}-seed{seed}",
        )
        for seed in seeds
        for row, spec in specs
    ]
    entries = do_runs(runs, jobs=jobs, say=console.print)
    # a run found again may have been another row's, under its name
    entries = [{**entry, "label": run.spec.label} for run, entry in zip(runs, entries, strict=True)]
    with console.status(MEASURING):
        results = measure(runs, entries, data, title=f"attnmix: {preset.title}")
        results["ablation"] = ablation_results(preset, planned, results)
        page = write_results(_strict(results), runs, data, out)
    table = out / "ablation.md"
    table.write_text(ablation_markdown(results), encoding="utf-8")
    console.print(format_ablation(results))
    console.print(f"table: {table}\nreport: {page}", soft_wrap=True, highlight=False)
    return 0


def ablation_results(
    preset: Preset, planned: "Sequence[PlannedRow]", results: Mapping[str, Any]
) -> dict[str, Any]:
    """The table as plain numbers: what the paper and what our runs say of each row, and of its reference.

    A difference of ours is the mean over seeds of the two rows' difference under the same seed.
    """
    top1: dict[str, dict[int, float]] = {}
    for entry in results["runs"]:
        top1.setdefault(entry["label"], {})[entry["seed"]] = entry["top1"]
    measured = {row["label"]: {**_last_epochs(results, row["label"]), **row} for row in results["summary"]}
    run_of = {plan.row.label: plan.same_as or plan.row.label for plan in planned if not plan.left_out}
    paper = {row.label: row.paper for row in preset.rows}
    rows = []
    for plan in planned:
        row = plan.row
        ours = top1.get(run_of.get(row.label, ""), {})
        reference = top1.get(run_of.get(row.reference, ""), {})
        gaps = [ours[seed] - reference[seed] for seed in ours if seed in reference]
        found = measured.get(run_of.get(row.label, ""), {})
        rows.append(
            {
                "number": plan.number,
                "label": row.label,
                "reference": row.reference,
                "method": row.method,
                "method_options": plan.options,
                "paper": row.paper,
                "paper_difference": round(row.paper - paper[row.reference], 6),
                "paper_further": row.further,
                "ours": statistics.fmean(ours.values()) if ours else None,
                "ours_std": _spread(list(ours.values())),
                "ours_difference": statistics.fmean(gaps) if gaps else None,
                "ours_difference_std": _spread(gaps),
                "ours_further": {heading: found.get(key) for heading, key in preset.measured.items()},
                "note": plan.note,
            }
        )
    recipe, seeds = results["recipe"], sorted({entry["seed"] for entry in results["runs"]})
    epochs = f"{recipe['epochs']} epoch{'s' * (recipe['epochs'] > 1)}"
    setting = f"{recipe['model']} on {recipe['data']}, {epochs}, seed{'s' * (len(seeds) > 1)} "
    return {
        "preset": preset.name,
        "title": preset.title,
        "column": preset.column,
        "setting": setting + ", ".join(map(str, seeds)),
        "rows": rows,
    }


def _last_epochs(results: Mapping[str, Any], label: str) -> dict[str, float]:
    """What every run of a row recorded of its last epoch, as a mean over the seeds."""
    last = [run["history"][-1] for run in results["runs"] if run["label"] == label and run["history"]]
    names = set.intersection(*(set(epoch) for epoch in last)) if last else set()
    return {name: statistics.fmean(epoch[name] for epoch in last) for name in names if last[0][name] is not None}


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _typed_options(preset: Preset, numbers: Sequence[int], recipe: "Recipe", written: "Recipe") -> dict[str, Any]:
    """The method_options that were typed, and not written in the recipe's file.

    Raises:
        ValueError: one that no method here has, or that every row sets itself; the seed.
    """
    from attnmix.methods import method_options

    before = written.method_options
    typed = {name: value for name, value in recipe.method_options.items() if before.get(name, ...) != value}
    if "seed" in typed:
        raise ValueError("seed is no option of a row: all rows take the seeds of the command")
    rows = [preset.rows[number] for number in numbers]
    for option in typed:
        having = [row for row in rows if option in method_options(row.method, {**row.common, **typed, **row.own})]
        if not having:
            raise ValueError(f'no method of {preset.name} has the option "{option}"; see `attnmix list methods`')
        if all(option in row.own for row in having):
            raise ValueError(f"method_options.{option} has no effect: every row of {preset.name} sets it itself")
    return typed


def _strict(value: Any) -> Any:
    """With infinity as a word: JSON has no such number."""
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
