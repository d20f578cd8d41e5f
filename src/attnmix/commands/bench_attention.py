"""Time and memory of reading attention, beside holding softmax(QK^T) whole.

Random queries and keys of one attention call give class attention (TransMix), image attention (SMMix) and one step
of label propagation (TL-Align), each compared with the fused attention that runs anyway.
"""

import shlex
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

GIB = 2**30
DTYPES = ("float32", "bfloat16", "float16")
LEAST = {"heads": 1, "width": 1, "batch_size": 1, "rounds": 3, "threads": 1}

EXAMPLES = """
examples:
  attnmix bench attention
  attnmix bench attention --tokens 196,784,3136 --heads 6 --batch_size 4 --out results
  attnmix bench attention --device cuda --dtype bfloat16 --max_gib 40 --out results
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the call's shape, how it is measured, and --out."""
    parser.add_argument(
        "--tokens", default="49,196,784,3136,16384", help="comma-separated numbers of image tokens"
    )
    parser.add_argument("--heads", type=int, default=3, help="attention heads")
    parser.add_argument("--width", type=int, default=64, help="width of each head")
    parser.add_argument("--batch_size", type=int, default=1, help="images")
    parser.add_argument("--rounds", type=int, default=30, help="how often each is timed at most")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="after which three rounds must do, per number of tokens"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch's CPU threads")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--dtype", default="float32", help=f"of queries and keys: {', '.join(DTYPES)}")
    parser.add_argument(
        "--max_gib", type=float, default=4.0, help="softmax(QK^T) is not held whole where it needs more"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for attention-DEVICE-DTYPE.json, .md and .png")


def run(arguments: Namespace) -> int:
    """Measure, print the table, write the files."""
    tokens = parse_tokens(arguments.tokens)
    for name, least in LEAST.items():
        if arguments[name] < least:
            raise ValueError(f"{name} is {arguments[name]}, but must be {least} or more")
    for name in ("seconds", "max_gib"):
        if not arguments[name] >= 0:
            raise ValueError(f"{name} is {arguments[name]}, but must be 0 or more")
    if arguments.dtype not in DTYPES:
        raise ValueError(f"dtype is {arguments.dtype!r}, but must be one of {', '.join(DTYPES)}")

    import torch
    from rich.console import Console
    from rich.progress import Progress

    from attnmix.benchmark.attention import measure_attention
    from attnmix.benchmark.attention_table import HEAD, attention_notes, attention_table, without_interval
    from attnmix.benchmark.device import chosen_device, pinned_threads
    from attnmix.benchmark.machine import describe_machine
    from attnmix.report.attention_cost import attention_cost
    from attnmix.report.benchmark import print_table, write_benchmark

    device = chosen_device(arguments.device)
    bar = Progress(transient=True, disable=not Console().is_terminal)
    step = bar.add_task("reading attention", total=sum(count**2 for count in tokens))  # as time goes
    try:
        with pinned_threads(arguments.threads), bar:
            costs = measure_attention(
                tokens,
                heads=arguments.heads,
                width=arguments.width,
                batch_size=arguments.batch_size,
                device=device,
                dtype=getattr(torch, arguments.dtype),
                rounds=arguments.rounds,
                seconds=arguments.seconds,
                max_bytes=arguments.max_gib * GIB,
                progress=lambda count: bar.advance(step, count**2),
            )
    except torch.OutOfMemoryError as error:
        raise ValueError(f"this does not fit on {device}: lower --max_gib, --batch_size or --tokens") from error
    body = attention_table(costs)
    notes = attention_notes(costs)
    print_table(*without_interval(HEAD, body), notes=notes)
    if arguments.out is not None:
        rows = [cost.as_dict() for cost in costs]
        written = write_benchmark(
            Path(arguments.out),
            f"attention-{device.type}-{arguments.dtype}",
            settings={
                "command": command_line(arguments),
                "machine": describe_machine(device, threads=arguments.threads),
                "notes": notes,
                **{name: arguments[name] for name in ("heads", "width", "batch_size", "dtype", "max_gib")},
                "device": device.type,
            },
            rows=rows,
            head=HEAD,
            body=body,
            figure=attention_cost(rows),
        )
        for path in written:
            print(path)
    return 0


def parse_tokens(typed: str) -> list[int]:
    """Read --tokens.

    Raises:
        ValueError: anything but rising whole numbers from 1 with commas between.
    """
    try:
        tokens = [int(count) for count in str(typed).split(",")]
    except ValueError as error:
        raise ValueError(f"tokens {typed!r}: want whole numbers with commas between, as in 196,784") from error
    if tokens[0] < 1 or tokens != sorted(set(tokens)):
        raise ValueError(f"tokens {typed!r}: want 1 or more, each number greater than the one before")
    return tokens


def command_line(arguments: Namespace) -> str:
    """The command that gives these numbers again."""
    names = (
        "tokens",
        "heads",
        "width",
        "batch_size",
        "rounds",
        "seconds",
        "threads",
        "device",
        "dtype",
        "max_gib",
    )
    words = (word for name in names for word in (f"--{name}", str(arguments[name])))
    return shlex.join(["attnmix", "bench", "attention", *words])
