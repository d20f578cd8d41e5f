"""Every GPU table of docs/performance.md, in one go; needs Python, torch, timm and this checkout.

Writes JSON and Markdown; `benchmarks/publish.py` draws the charts and renews the page, wherever matplotlib is.
"""

import argparse
import importlib.util
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from attnmix.backbone import BackboneView
from attnmix.benchmark.attention import measure_attention
from attnmix.benchmark.attention_table import HEAD, attention_notes, attention_table
from attnmix.benchmark.device import chosen_device
from attnmix.benchmark.machine import describe_machine
from attnmix.benchmark.results import markdown_page, write_results
from attnmix.benchmark.step import bench_steps
from attnmix.benchmark.step_model import model_and_batch
from attnmix.benchmark.step_rows import ALL_ROWS, StepRow, make_method
from attnmix.benchmark.step_settings import StepSettings
from attnmix.benchmark.step_table import step_notes, step_table
from attnmix.benchmark.step_time import TrainingStep
from attnmix.benchmark.waits import count_waits
from attnmix.task import MixTask

# What runs compiled: a compilation each is minutes, and the others differ from these outside the model alone.
COMPILED = ("cutmix", "transmix", "tl-align", "smmix", "smmix (mixup_prob=0.5)")
CHEAP = StepRow("smmix (consistency=False, block=5)", "smmix", {"consistency": False, "block": 5})
TOKENS = (49, 196, 784, 3136, 16384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for the tables")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--eager", action="store_true", help="leave the compiled steps out")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    args = parser.parse_args()
    device = chosen_device(args.device)
    begun = time.monotonic()
    rows = [*ALL_ROWS, CHEAP]
    if importlib.util.find_spec("scipy") is None:
        print(
            "no SciPy here: HTM, whose assignment needs it, is left out, and Mixup draws by alpha 1 (at one cost)"
        )
        rows = [
            without_scipy(row)
            for row in rows
            if row.method != "tokenmixup" or row.options.get("horizontal", 0) is None
        ]
    for compiled in (False,) if args.eager else (False, True):
        steps(args, device, [row for row in rows if not compiled or row.label in COMPILED], compiled)
        print(f"{time.monotonic() - begun:.0f} s so far\n", flush=True)
    attention(args, device)
    if device.type == "cuda":
        waits(args, device, rows)
    print(f"{time.monotonic() - begun:.0f} s in all")


def without_scipy(row: StepRow) -> StepRow:
    """The same row where no Beta distribution but the uniform one can be drawn from."""
    blends = row.method == "mixup" or "mixup_prob" in row.options
    return replace(row, options={**row.options, "mixup_alpha": 1.0}) if blends else row


def steps(args: argparse.Namespace, device: torch.device, rows: list[StepRow], compiled: bool) -> None:
    """Training steps in bfloat16, eager or compiled."""
    settings = settings_of(args, device, compiled)
    found = bench_steps([args.model], rows, settings)
    head, body = step_table(found)
    save(args, device, settings.stem, {**asdict(settings), "notes": step_notes(found, device)}, found, head, body)


def attention(args: argparse.Namespace, device: torch.device) -> None:
    """Reading one attention call, in bfloat16."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 8 * 2**30
    shape = {"heads": 6, "width": 64, "batch_size": 1}
    costs = measure_attention(args.tokens, **shape, device=device, dtype=torch.bfloat16, max_bytes=free / 2)
    rows, notes = [cost.as_dict() for cost in costs], attention_notes(costs)
    save(
        args,
        device,
        f"attention-{device.type}-bfloat16",
        {**shape, "notes": notes},
        rows,
        HEAD,
        attention_table(costs),
    )


def waits(args: argparse.Namespace, device: torch.device, rows: list[StepRow]) -> None:
    """How often each step makes the host wait for the GPU."""
    settings = settings_of(args, device, compiled=False)
    model, images, labels = model_and_batch(args.model, settings)
    found = []
    for row in rows:
        for kind in row.kinds():
            task = MixTask(model, make_method(kind, num_classes=BackboneView(model).num_classes, seed=0))
            step = TrainingStep(task, images, labels, autocast=settings.autocast)
            step()
            found.append({"method": row.label, "kind": kind.key, "waits": count_waits(step)})
    body = [[row["method"], row["kind"], str(row["waits"])] for row in found]
    notes = [
        "Synchronising operations in a step, optimizer included, as torch.cuda.set_sync_debug_mode sees them."
    ]
    save(
        args, device, "waits-cuda", {**asdict(settings), "notes": notes}, found, ["method", "kind", "waits"], body
    )


def settings_of(args: argparse.Namespace, device: torch.device, compiled: bool) -> StepSettings:
    return StepSettings(
        batch_size=args.batch_size, rounds=args.rounds, device=str(device), dtype="bfloat16", compile=compiled
    )


def save(args, device, stem, settings, rows, head, body) -> None:
    """Write and print; the command is the one that was typed, less the folder."""
    typed = f"--model {args.model} --batch-size {args.batch_size} --rounds {args.rounds}"
    machine = describe_machine(device, threads=settings.get("threads", torch.get_num_threads()))
    settings = {"command": f"benchmarks/run_gpu.sh {typed}", "model": args.model, "machine": machine, **settings}
    write_results(args.out, stem, settings=settings, rows=rows, head=head, body=body)
    print(markdown_page(settings, head, body), flush=True)


if __name__ == "__main__":
    main()
