"""Time a training step of each method beside plain CutMix's, and count what it must cost at least.

Every step is measured once per round, in a shuffled order, so that what disturbs the machine disturbs all alike.
The floor beside each ratio is that of counted FLOPs.
"""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

if TYPE_CHECKING:
    from attnmix.benchmark.step_rows import StepRow

EXAMPLES = """
examples:
  attnmix bench step --models deit_tiny_patch16_224,deit_small_patch16_224 --out benchmarks/results
  attnmix bench step --methods transmix,smmix:mixup_prob=0.5,tokenmixup:vertical=null --rounds 50
  attnmix bench step --methods all,smmix:consistency=false:block=5     # and SMMix's cheap clean pass
  attnmix bench step --methods others                                  # what the papers compare with
  attnmix bench step --models deit_small_patch16_224 --batch_size 256 --dtype bfloat16 --compile --device cuda
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add what is measured, how, and --out."""
    parser.add_argument("--models", default="deit_tiny_patch16_224", help="timm's names, comma-separated")
    parser.add_argument(
        "--methods",
        default="all",
        help="comma-separated; options after colons, as in smmix:mixup_prob=0.5; idle-tap is CutMix under a tap "
        "that nothing reads; all is the papers' four methods, SMMix in half of the steps too, and TokenMixup's "
        "parts; others is every other method of attnmix list methods. Steps always paste unless mixup_prob is "
        "said; a teacher that is not named is the model itself; CutMix is always measured",
    )
    parser.add_argument("--batch_size", type=int, default=16, help="images of a step")
    parser.add_argument(
        "--image_size", default=None, metavar="PIXELS", help="side, or H,W; default: what the model was made for"
    )
    parser.add_argument("--rounds", type=int, default=30, help="how often each step is timed")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before that, not counted")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="float32", help="float32, or autocast to bfloat16 or float16")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--channels_last", action="store_true", help="that memory format for model and images")
    parser.add_argument("--seed", type=int, default=0, help="of weights, images, draws and order")
    parser.add_argument("--out", default=None, metavar="DIR", help="folder for JSON, Markdown table and chart")


def run(arguments: Namespace) -> int:
    """Measure, print the table, write it down."""
    # torch, timm and matplotlib take seconds to import: --help and wrong words do without
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from attnmix.benchmark.machine import describe_machine
    from attnmix.benchmark.step import bench_steps
    from attnmix.benchmark.step_settings import StepSettings
    from attnmix.benchmark.step_table import step_notes, step_table
    from attnmix.report import print_table, ratio_chart, write_benchmark

    models = list(dict.fromkeys(name.strip() for name in arguments.models.split(",") if name.strip()))
    values = {key: arguments[key] for key in StepSettings.__dataclass_fields__}
    settings = StepSettings(**{**values, "image_size": parse_size(arguments.image_size)})
    rows = parse_rows(arguments.methods)
    device = settings.torch_device
    machine = describe_machine(device, threads=settings.threads)
    try:
        with Progress(transient=True, disable=not Console().is_terminal) as bar:
            tasks = {name: bar.add_task(name, total=None) for name in models}
            found = bench_steps(
                models,
                rows,
                settings,
                progress=lambda name, done, total: bar.update(tasks[name], completed=done, total=total),
            )
    except torch.OutOfMemoryError as error:
        raise ValueError(f"batch_size {settings.batch_size} does not fit into {device}'s memory") from error
    head, body = step_table(found)
    notes = step_notes(found, device)
    print_table(head, body, notes=notes)
    if arguments.out is not None:
        written = write_benchmark(
            Path(arguments.out),
            settings.stem,
            settings={
                "command": command_line(arguments),
                "machine": machine,
                "models": models,
                **asdict(settings),
                "notes": notes,
            },
            rows=found,
            head=head,
            body=body,
            figure=ratio_chart(found),
        )
        print(*written, sep="\n")
    return 0


def parse_rows(typed: str) -> "list[StepRow]":
    """Read --methods.

    Raises:
        ValueError: as `parse_methods`; idle-tap with options; something named twice.
    """
    from attnmix.benchmark.step_rows import ALL_ROWS, IDLE_TAP, StepRow
    from attnmix.commands.method_specs import parse_methods
    from attnmix.methods import METHODS

    words = [word.strip() for word in typed.split(",")]
    ours = [row for row in ALL_ROWS if "all" in words or (row.method == IDLE_TAP and IDLE_TAP in words)]
    named = [word for word in words if word not in ("all", "others", IDLE_TAP)]
    if "others" in words:
        covered = {row.method for row in ALL_ROWS}
        named += [name for name in METHODS if name not in covered]
    specs = parse_methods(",".join(named)) if named or not ours else []
    rows = [*ours, *(StepRow(spec.label, spec.name, spec.taught_by("self").options) for spec in specs)]
    for i, row in enumerate(rows):
        if any((row.method, row.options) == (other.method, other.options) for other in rows[:i]):
            raise ValueError(f"{row.label} is named twice (all has: {', '.join(row.label for row in ALL_ROWS)})")
    if max(map(words.count, ("all", "others", IDLE_TAP))) > 1:
        raise ValueError(f"{typed!r} names all, others or {IDLE_TAP} twice")
    return rows


def parse_size(typed: str | int | None) -> tuple[int, int] | None:
    """Read --image_size: a side, or height and width.

    Raises:
        ValueError: anything but one or two whole numbers above 0.
    """
    if typed is None:
        return None
    sides = str(typed).split(",")
    if len(sides) > 2 or not all(side.strip().isdecimal() and int(side) for side in sides):
        raise ValueError(
            f"image_size is {typed!r}: want a side in pixels, as in 224, or height and width, as in 224,160"
        )
    return int(sides[0]), int(sides[-1])


def command_line(arguments: Namespace) -> str:
    """The command that measures the same again; where to write the results is no part of it."""
    words = ["attnmix", "bench", "step"]
    for name, value in vars(arguments).items():
        if name == "out" or value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)
