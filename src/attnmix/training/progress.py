"""What a person sees of a run: a bar on a terminal, a line per epoch everywhere."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

__all__ = ["epoch_line", "progress_bar"]


@contextlib.contextmanager
def progress_bar(console: Console, *, total: int, done: int) -> Iterator[Any]:
    """Yield update(epoch, steps, loss=, accuracy=, speed=); shows nothing where there is no terminal."""
    if console.quiet or not console.is_terminal:
        yield lambda *args, **kwargs: None
        return
    numbers = "loss {task.fields[loss]:.3f}  acc {task.fields[accuracy]:.1f} %  {task.fields[speed]:.0f} images/s"
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(numbers),
        TimeRemainingColumn(),
    )
    # Rich tells the time left by the last 30 seconds alone, which hold no two slow steps.
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600.0) as bar:
        fields: dict[str, Any] = {"epoch": 0, "loss": math.nan, "accuracy": math.nan, "speed": 0.0}
        bar_task = bar.add_task("train", total=total, completed=done, **fields)

        def update(epoch: int, steps: int, *, loss: Tensor, accuracy: Any, speed: float) -> None:
            # compute() would wait for the other processes: this process's own accuracy is enough here
            percent = 100 * float(accuracy.tp.sum() / (accuracy.tp.sum() + accuracy.fn.sum()))
            bar.update(bar_task, advance=steps, epoch=epoch, loss=loss.item(), accuracy=percent, speed=speed)

        yield update


def epoch_line(entry: dict[str, float], epochs: int) -> str:
    """Return the line that closes an epoch."""
    parts = [f"epoch {int(entry['epoch']):>{len(str(epochs))}}/{epochs}", f"loss {entry['train_loss']:.3f}"]
    parts.append(f"train {entry['train_top1']:.1f} %")
    if "eval_top1" in entry:
        parts.append(f"eval {entry['eval_top1']:.1f} %")
    if "ema_top1" in entry:
        parts.append(f"ema {entry['ema_top1']:.1f} %")
    parts.append(f"{entry['images_per_second']:.0f} images/s")
    return "  ".join(parts)
