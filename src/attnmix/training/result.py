"""What a run came to, and how its files are written: aside, then moved, so that none is ever half there."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TrainingResult", "write_lines", "write_text"]


@dataclass
class TrainingResult:
    """What a run came to, measured with the exported weights (the average's, where `ema` is on)."""

    top1: float
    """Percent, as top5."""
    top5: float | None
    """None with five classes or fewer."""
    loss: float
    """Cross-entropy on the evaluation split."""
    confusion: list[list[int]]
    """[C][C] counts: confusion[truth][prediction]."""
    class_names: list[str]
    history: list[dict[str, float]]
    """One dictionary per epoch, as in metrics.jsonl."""
    seconds: float
    """Time spent training, evaluation left out, summed over all epochs."""
    images_per_second: float
    model: str
    """Folder of the exported model."""
    checkpoint: str
    """The checkpoint's file."""


def write_lines(path: Path, entries: list[dict[str, float]]) -> None:
    """Write a line of JSON for each entry."""
    write_text(path, "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries))


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
