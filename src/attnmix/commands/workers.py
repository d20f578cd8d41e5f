"""Several runs of a comparison at a time, in processes of their own, each run only once."""

import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from attnmix.commands.runs import Run, do_run

SAVED_WITHIN = 120  # seconds


def do_runs(runs: Sequence[Run], *, jobs: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Do what is not done yet, `jobs` runs at a time in processes of their own; entries in the runs' order.

    A run's failure is raised at once, and the others are stopped; stopped runs go on from their checkpoint when
    the same command is given again.
    """
    for run in runs:
        run.check_unchanged()
    entries = {run.folder: run.finished() for run in runs}
    open_runs = [run for run in runs if entries[run.folder] is None]
    if len(open_runs) < len(runs):
        say(f"{len(runs) - len(open_runs)} of {len(runs)} runs are done already")
    if open_runs:
        pool = ProcessPoolExecutor(min(jobs, len(open_runs)), mp_context=_context(), initializer=_end_with_parent)
        try:
            futures = {run.folder: pool.submit(do_run, run) for run in open_runs}
            _follow(open_runs, futures, say)
            for future in futures.values():
                if future.done():
                    future.result()  # raises what ended it; others still run
            for run in open_runs:
                entries[run.folder] = futures[run.folder].result()
        except BaseException as error:
            _end(list((pool._processes or {}).values()))
            if isinstance(error, KeyboardInterrupt):
                say("interrupted: the same command goes on from here")
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [entry for run in runs if (entry := entries[run.folder]) is not None]


def _context() -> multiprocessing.context.BaseContext:
    """How workers start: anew, as forks of this process would inherit torch's thread pools half-alive.

    On Linux without CUDA they fork from a process that has only imported what they need, and so start at once.
    With CUDA they do not: an import may touch it, and after that no fork can use it.
    """
    if sys.platform != "linux" or torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _end(workers: list[multiprocessing.Process]) -> None:
    """End them within `SAVED_WITHIN` seconds, their runs saved where they are; at once on a second Ctrl-C.

    A worker that is just saving takes the signal for a second request to do so, and would then wait for its next
    run on a lock that another took with it: hence more than one signal.
    """
    until = time.monotonic() + SAVED_WITHIN
    try:
        while time.monotonic() < until and (alive := [worker for worker in workers if worker.is_alive()]):
            for worker in alive:
                worker.terminate()
            multiprocessing.connection.wait([worker.sentinel for worker in alive], timeout=0.5)
    finally:
        for worker in workers:
            worker.kill()


def _end_with_parent() -> None:
    """In a worker: however the command ends, its runs end with it and can be gone on with."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)  # a run under way saves where it is
            time.sleep(SAVED_WITHIN)
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _follow(runs: Sequence[Run], futures: dict[Path, Future], say: Callable[[str], None]) -> None:
    """Show how far each run is, read from its metrics file, until all have ended or one has failed."""
    total = sum(run.recipe.epochs for run in runs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} epochs"),
        TimeRemainingColumn(),
    )
    ended: set[Path] = set()
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("training", total=total)
        while len(ended) < len(runs):
            time.sleep(0.5)
            done = sum(epochs_done(run) for run in runs)
            active = [run for run in runs if futures[run.folder].running() and run.folder not in ended]
            names = ", ".join(f"{run.spec.label} seed {run.recipe.seed}" for run in active)
            progress.update(bar, completed=done, description=f"training {names}")
            for run in runs:
                future = futures[run.folder]
                if future.done() and run.folder not in ended:
                    ended.add(run.folder)
                    if future.exception() is not None:
                        return
                    entry = future.result()
                    progress.console.print(
                        f"{run.spec.label}, seed {run.recipe.seed}: top-1 {entry['top1']:.1f} % "
                        f"in {entry['seconds']:.0f} s",
                        highlight=False,
                    )


def epochs_done(run: Run) -> int:
    """Epochs that a run has told of."""
    path = run.folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0
