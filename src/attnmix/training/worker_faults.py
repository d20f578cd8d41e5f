"""What a loader's worker that dies means, in words: torch tells only its signal, in a RuntimeError."""

import contextlib
from collections.abc import Iterator

__all__ = ["explain_dead_workers"]


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
