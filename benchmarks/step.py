"""What a training step costs against plain CutMix, fused attention on in all (`make bench`).

Every method is forced to mix at every step and never to draw Mixup, so that what is timed is the method itself.
Ratios come with their 95 % bootstrap interval over rounds.
"""

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import timm
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import attnmix
from attnmix.evaluation.step_cost import measure_step_costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["deit_tiny_patch16_224"])
    parser.add_argument("--methods", nargs="+", default=[name for name in attnmix.METHODS if name != "mixup"])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--out", type=Path, help="folder for a JSON file and a Markdown table")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    autocast = None if args.dtype == "float32" else getattr(torch, args.dtype)
    rows = []
    for name in args.models:
        torch.manual_seed(0)
        model = timm.create_model(name).to(args.device)
        height, width = model.default_cfg["input_size"][1:]
        images = torch.randn(args.batch_size, 3, height, width, device=args.device)
        labels = torch.randint(model.num_classes, (args.batch_size,)).to(args.device)
        tasks = {}
        for method in args.methods:
            options = {"mixup_prob": 0.0} if method not in ("none", "mixup") else {}
            if method == "tokenmixup":
                options["tau"] = float("inf")  # an untrained model finds no sample easy
            mixing = attnmix.create_method(method, num_classes=model.num_classes, **options)
            tasks[method] = attnmix.MixTask(model, mixing)
        with Progress(transient=True) as bar:
            step = bar.add_task(name)
            costs = measure_step_costs(
                tasks,
                images,
                labels,
                baseline="cutmix",
                rounds=args.rounds,
                autocast=autocast,
                progress=lambda done, total: bar.update(step, completed=done, total=total),  # noqa: B023
            )
        rows += [{"model": name, "method": method, **cost.as_dict()} for method, cost in costs.items()]

    print_and_save(rows, args)


def print_and_save(rows: list[dict], args: argparse.Namespace) -> None:
    head = ["model", "method", "ratio to CutMix", "95 % interval", "step, s", "images/s"]
    body = [
        [
            row["model"],
            row["method"],
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f}-{row['high']:.3f}",
            f"{row['seconds']:.3f}",
            f"{args.batch_size / row['seconds']:.0f}",
        ]
        for row in rows
    ]
    table = Table(*head)
    for line in body:
        table.add_row(*line)
    Console().print(table)
    if args.out is None:
        return
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    settings |= {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "timm", "attnmix")},
    }
    if args.device.startswith("cuda"):
        settings["device_name"] = torch.cuda.get_device_name()
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"step-{args.device.replace(':', '')}-{args.dtype}"
    stem.with_suffix(".json").write_text(json.dumps({"settings": settings, "rows": rows}, indent=2) + "\n")
    lines = ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *body]]
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
