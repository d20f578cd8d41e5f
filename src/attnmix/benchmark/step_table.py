"""The table of `attnmix bench step`, as text, and the sentences that belong under it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

HEAD = ("model", "method", "ratio to CutMix", "95 % interval", "floor", "step, s", "images/s", "memory")
TAU = (
    "Every step pastes unless a row says otherwise (mixup_prob: pasting and blending are then timed apart and "
    "weighed by their shares). tokenmixup runs with tau=inf unless a row says otherwise: an untrained model finds "
    "no sample easy; so all are, the dearest case."
)
FLOOR = "Floor: FLOPs counted in a whole step of the uncompiled model, forward and backward, beside CutMix's."


def step_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table of what `bench_steps` found."""
    return list(HEAD), [_cells(row) for row in rows]


def step_notes(rows: Sequence[Mapping[str, Any]], device: torch.device) -> list[str]:
    """What a reader of the table must know, and why rows are empty."""
    memory = (
        "Memory: the most allocated on the GPU in a step, beside CutMix's."
        if device.type == "cuda"
        else "Memory: bytes that the forward keeps for the backward pass, beside CutMix's (counting them keeps "
        "TL-Align's labels from riding in the attention). Seconds are CPU time, of all threads together."
    )
    refused = [f"{row['method']} on {row['model']}: {row['note']}" for row in rows if row.get("note")]
    return [" ".join((TAU, FLOOR, memory)), *refused]


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["ratio"] is None:
        return [row["model"], row["method"], *["–"] * (len(HEAD) - 2)]
    return [
        row["model"],
        row["method"],
        f"{row['ratio']:.3f}",
        f"{row['low']:.3f}–{row['high']:.3f}",
        f"{row['floor']:.3f}",
        f"{row['seconds']:.3g}",
        f"{row['images_per_second']:.3g}",
        f"{row['memory_ratio']:.3f}×",
    ]
