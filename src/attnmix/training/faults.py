"""Faults that torch tells in its own terms, in words, and with what to do about them."""

import contextlib
import re
from collections.abc import Callable, Iterator

import torch
from accelerate import Accelerator

from attnmix.training.recipe import Recipe

__all__ = ["explain_dead_workers", "explain_memory_and_lost"]


@contextlib.contextmanager
def explain_dead_workers() -> Iterator[None]:
    """Turn torch's error about a worker that was killed, or went away, into one that says what to do.

    The error may arrive anywhere in the process that the worker belongs to, also in the midst of a step.

    Raises:
        ChildProcessError: an OSError; names the worker's process and its signal.
    """
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if not text.startswith("DataLoader worker (pid"):
            raise
        what = text.split(". ", 1)[0].rstrip(". ")
        raise ChildProcessError(
            f"{what}: most likely the memory or the shared memory "
            "(/dev/shm) ran out; lower loader.workers or batch_size, or give the machine or container more of it"
        ) from error


# what a process is told of when another of its run ends
_LOST = re.compile(
    "connection (closed|reset|refused|was)|socket|broken pipe|nccl|remote process exited", re.IGNORECASE
)


@contextlib.contextmanager
def explain_memory_and_lost(recipe: Recipe, accelerator: Accelerator, kept: Callable[[], str]) -> Iterator[None]:
    """Turn torch's errors about memory, and about another process that has ended, into ones that say what to do.

    Args:
        recipe: of the run.
        accelerator: of the run.
        kept: says what of the run is there still.

    Raises:
        MemoryError: the batch does not fit; names one that does, and trains the same.
        ConnectionError: an OSError; another process has ended.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        batch = recipe.batch_size
        halves = f"batch_size {batch // 2} and accumulation_steps {2 * recipe.accumulation_steps} train the same"
        less = halves if batch > 1 else "take a smaller model"
        raise MemoryError(
            f"batch_size {batch} does not fit on {accelerator.device}: {less}"
            + ("" if recipe.grad_checkpointing else "; so does grad_checkpointing true, in a third more time")
        ) from error
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not _LOST.search(str(error)):
            raise
        raise ConnectionError(
            f"another process of this run has ended, so process {accelerator.process_index} ends too; {kept()}"
        ) from error
