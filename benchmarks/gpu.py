"""Every GPU table of docs/performance.md, in one go; needs Python, torch, timm and this checkout.

Writes JSON and Markdown; `benchmarks/publish.py` draws the charts and renews the page, wherever matplotlib is.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import torch

from attnmix.benchmark.attention import measure_attention
from attnmix.benchmark.attention_table import HEAD, attention_notes, attention_table
from attnmix.benchmark.machine import describe_machine
from attnmix.benchmark.results import markdown_page, write_results
from attnmix.benchmark.step import bench_steps
from attnmix.benchmark.step_rows import ALL_ROWS
from attnmix.benchmark.step_settings import StepSettings
from attnmix.benchmark.step_table import step_notes, step_table

# What runs compiled: a compilation each is minutes, and the others differ from these outside the model alone.
COMPILED = ("cutmix", "transmix", "tl-align", "smmix", "smmix (mixup_prob=0.5)")
TOKENS = (49, 196, 784, 3136, 16384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for the tables")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    args = parser.parse_args()
    begun = time.monotonic()
    for compiled in (False, True):
        steps(args, compiled)
        print(f"{time.monotonic() - begun:.0f} s so far\n", flush=True)
    attention(args)
    print(f"{time.monotonic() - begun:.0f} s in all")


def steps(args: argparse.Namespace, compiled: bool) -> None:
    """Training steps in bfloat16, eager or compiled."""
    rows = [row for row in ALL_ROWS if not compiled or row.label in COMPILED]
    if importlib.util.find_spec("scipy") is None:
        print("no SciPy here: rows that need it (Mixup's draw, HTM's assignment) are left out")
        rows = [
            row for row in rows if row.method not in ("mixup", "tokenmixup") and "mixup_prob" not in row.options
        ]
    settings = StepSettings(
        batch_size=args.batch_size, rounds=args.rounds, device=args.device, dtype="bfloat16", compile=compiled
    )
    found = bench_steps([args.model], rows, settings)
    head, body = step_table(found)
    notes = step_notes(found, settings.torch_device)
    save(args, settings.stem, {"batch_size": args.batch_size, "notes": notes}, found, head, body)


def attention(args: argparse.Namespace) -> None:
    """Reading one attention call, in bfloat16."""
    device = torch.device(args.device)
    costs = measure_attention(
        args.tokens, heads=6, width=64, device=device, dtype=torch.bfloat16, max_bytes=40 * 2**30
    )
    rows = [cost.as_dict() for cost in costs]
    settings = {"heads": 6, "width": 64, "batch_size": 1, "notes": attention_notes(costs)}
    save(args, f"attention-{device.type}-bfloat16", settings, rows, HEAD, attention_table(costs))


def save(args, stem, settings, rows, head, body) -> None:  # type: ignore[no-untyped-def]
    machine = describe_machine(torch.device(args.device), threads=torch.get_num_threads())
    settings = {"command": "benchmarks/run_gpu.sh", "machine": machine, **settings}
    write_results(args.out, stem, settings=settings, rows=rows, head=head, body=body)
    print(markdown_page(settings, head, body), flush=True)


if __name__ == "__main__":
    sys.exit(main())
