"""The runs of a comparison: one folder each, several at a time, each done only once."""

import itertools
import json
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.data import IterableDataset

from attnmix.commands.method_specs import MethodSpec
from attnmix.commands.trained import trained_model, what_its_method_learnt
from attnmix.evaluation.label_content import label_content_error
from attnmix.evaluation.pasting import pasting_method, with_what_it_learnt
from attnmix.methods import create_method
from attnmix.task import MixTask
from attnmix.training import Recipe, load_recipe, train
from attnmix.training.checkpoint import has_checkpoint
from attnmix.training.loop import RECIPE
from attnmix.training.resuming import FREE_ON_RESUME
from attnmix.training.setup import create_data, create_model

ENTRY = "run.json"
ENTRY_KEYS = {
    "label", "method", "method_options", "seed", "top1", "top5", "train_top1", "seconds", "images_per_second",
    "history", "confusion", "class_names", "label_content_error", "recipe",
}  # fmt: skip
SAVED_WITHIN = 120  # seconds
LOOKED_AT = 512  # images on which labels are judged


@dataclass(frozen=True)
class Run:
    """One training run of a comparison: a method, a seed, a recipe and a folder."""

    spec: MethodSpec
    recipe: Recipe
    folder: Path

    def finished(self) -> dict[str, Any] | None:
        """What the run came to, if it is done and was done by this recipe; a damaged entry is made anew."""
        path = self.folder / ENTRY
        if not path.is_file():
            return None
        try:
            entry = json.loads(path.read_bytes())
            same = _decisive(entry["recipe"]) == _decisive(_plain(self.recipe))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return entry if same and set(entry) >= ENTRY_KEYS else None

    def check_unchanged(self) -> None:
        """Raise ValueError if the folder holds a run that another recipe began, one with more epochs say.

        Its schedule, or what it was trained on, would not be that of the methods trained from the start.
        """
        path = self.folder / RECIPE
        if not has_checkpoint(self.folder) or not path.is_file():
            return
        before, now = _decisive(_plain(load_recipe(path))), _decisive(_plain(self.recipe))
        for key, value in now.items():
            if before[key] != value:
                raise ValueError(
                    f"{self.folder} was begun with {key} {before[key]!r}, not {value!r}: "
                    "set it back, or choose another --out"
                )


def load_evaluation(recipe: Recipe) -> Any:
    """The recipe's evaluation data."""
    return create_data(recipe)[1]


def check_methods(specs: Sequence[MethodSpec], recipe: Recipe) -> None:
    """Bind each method to the recipe's model, so that a missing package or an unfit option ends no long series.

    Raises:
        ValueError: what the method finds wrong, with its name in front.
    """
    classes = load_evaluation(recipe).num_classes
    model = create_model(recipe, num_classes=classes)
    for spec in specs:
        try:
            MixTask(model, create_method(spec.name, num_classes=classes, **spec.options))
        except ValueError as error:
            raise ValueError(f"{spec.label}: {error}") from error


def first_images(data: Any, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Images `[N, C, H, W]`, labels `[N]` and, where the data set knows them, object masks `[N, H, W]`."""
    if isinstance(data, IterableDataset):
        items = list(itertools.islice(data, count))
        index = torch.arange(len(items))
    else:
        # evenly over the whole set: folders are sorted by class
        index = torch.linspace(0, len(data) - 1, min(count, len(data))).long()
        items = [data[int(i)] for i in index]
    images = torch.stack([image for image, _ in items])
    labels = torch.tensor([label for _, label in items])
    masks = getattr(data, "masks", None)
    if masks is None or masks.shape[-2:] != images.shape[-2:]:
        return images, labels, None
    return images, labels, masks[index]


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
            futures = {run.folder: pool.submit(_do_run, run) for run in open_runs}
            _follow(open_runs, futures, say)
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
            done = sum(_epochs_done(run) for run in runs)
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


def _epochs_done(run: Run) -> int:
    path = run.folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _do_run(run: Run) -> dict[str, Any]:
    """Train, judge the labels, and leave the entry beside the run."""
    recipe = run.recipe
    result = train(recipe, run.folder, resume=has_checkpoint(run.folder), progress=False)
    model = trained_model(run.folder)
    entry = {
        "label": run.spec.label,
        "method": recipe.method,
        "method_options": recipe.method_options,
        "seed": recipe.seed,
        "top1": result.top1,
        "top5": result.top5,
        "train_top1": result.history[-1].get("train_top1"),
        "seconds": result.seconds,
        "images_per_second": result.images_per_second,
        "history": result.history,
        "confusion": result.confusion,
        "class_names": result.class_names,
        "label_content_error": _label_content(run, model),
        "recipe": _plain(recipe),
    }
    path = run.folder / ENTRY
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(entry), encoding="utf-8")
    os.replace(aside, path)
    return entry


def _label_content(run: Run, model: Any) -> dict[str, float] | None:
    # evaluation images have no label maps
    spec = run.spec.taught_by("self")
    method = pasting_method(spec.name, num_classes=model.num_classes, **spec.options)
    data = load_evaluation(run.recipe)
    if method is None or not hasattr(data, "masks"):
        return None
    images, labels, masks = first_images(data, LOOKED_AT)
    if masks is None:
        return None
    method = with_what_it_learnt(method, model, what_its_method_learnt(run.folder, run.recipe))
    return label_content_error(model, method, images, labels, masks).as_dict()


# groups of the recipe's keys, `loader` for one, go as a whole
_FREE = {name.partition(".")[0] for name in FREE_ON_RESUME} - {"epochs", "eval_every"}


def _decisive(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe without what changes no result: where and how fast it ran."""
    return {key: value for key, value in recipe.items() if key not in _FREE}


def _plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON gives it back."""
    return json.loads(json.dumps(asdict(recipe)))
