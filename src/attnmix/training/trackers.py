"""Where a run's curves go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow, by Accelerate's trackers.

Only the main process tracks. Which run of theirs a resumed run goes on with is kept in its folder.
"""

import contextlib
import importlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, MLflowTracker, TensorBoardTracker, WandBTracker

from attnmix._nearest import nearest
from attnmix.training.reading import recipe_defaults
from attnmix.training.recipe import Recipe

__all__ = ["TRACKERS", "check_trackers", "tracked_values", "tracking"]

_logger = logging.getLogger(__name__)

# tracker -> (module it needs, what that has: a folder `wandb` in the working directory can be imported too)
TRACKERS = {
    "tensorboard": ("torch.utils.tensorboard", "SummaryWriter"),
    "wandb": ("wandb", "init"),
    "mlflow": ("mlflow", "start_run"),
}
PROJECT = "attnmix"
RUN_IDS = "trackers.json"  # tracker -> its own id of the run in this folder
PATIENCE = 3  # epochs that may fail to be logged one after the other: a server that is gone can cost minutes each


def check_trackers(names: Iterable[str]) -> None:
    """Check that the trackers exist and can be imported.

    Raises:
        ValueError: an unknown name, with the nearest; a package that is missing or broken.
    """
    for name in names:
        if name not in TRACKERS:
            hint = nearest(str(name), TRACKERS)
            raise ValueError(f"unknown tracker {name!r}{hint}; known: {', '.join(TRACKERS)}, and [] is none")
        module, needed = TRACKERS[name]
        try:
            is_there = hasattr(importlib.import_module(module), needed)
        except Exception as error:  # a package that does not fit its neighbours fails in any way
            if not isinstance(error, ModuleNotFoundError) or error.name not in (name, module):
                raise ValueError(f"tracker {name!r} cannot be imported: {_line(error)}") from error
            is_there = False
        if not is_there:
            raise ValueError(f"tracker {name!r} needs the package {name}: pip install {name}")


def tracked_values(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as trackers take it: dotted keys, and numbers, texts or None."""
    return dict(_flat("", recipe_defaults(recipe)))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            is_plain = value is None or isinstance(value, (bool, int, float, str))
            yield f"{prefix}{key}", value if is_plain else str(value)


@contextlib.contextmanager
def tracking(
    accelerator: Accelerator, recipe: Recipe, out: Path, *, first_epoch: int, resumed: bool
) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Start the recipe's trackers; yields what logs an epoch's entry of metrics.jsonl; ends them.

    They are told whether the training inside failed or was stopped. A tracker that fails does not end it: that
    is warned of, and the tracker left out after `PATIENCE` epochs. Other processes than the main one do nothing.

    Args:
        accelerator: the run's.
        recipe: says which trackers.
        out: the run's folder.
        first_epoch: epochs that are done already.
        resumed: go on with the trackers' own runs of this folder, where they are known.

    Raises:
        ValueError: a tracker does not start (no account, no such server).
    """
    started: list[GeneralTracker] = []
    ending = "failed"
    try:
        if accelerator.is_main_process:  # Accelerate's own wandb tracker would start a run in each
            ids = _read(out / RUN_IDS) if resumed else {}
            _start(started, accelerator, recipe, out, ids, first_epoch)
        failures = dict.fromkeys(started, 0)
        yield lambda entry: _log(failures, entry)
        ending = "finished"
    except KeyboardInterrupt:  # signals too
        ending = "killed"
        raise
    finally:
        for tracker in started:
            try:
                _finish(tracker, ending)
            except Exception as error:
                _logger.warning("tracker %s did not end well: %s", tracker.name, _line(error))


# ------------------------------------------------------------------ starting


def _start(
    started: list[GeneralTracker],
    accelerator: Accelerator,
    recipe: Recipe,
    out: Path,
    ids: dict[str, str],
    first_epoch: int,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    known = set(ids)
    for name in dict.fromkeys(recipe.trackers):
        try:
            tracker = _create(name, accelerator, out, ids, first_epoch)
            tracker.start()
            started.append(tracker)
            if name == "mlflow":
                ids[name] = tracker.tracker.info.run_id
            # TensorBoard would make a run of its own of the recipe, MLflow refuses what changed on resuming
            if name == "wandb" or (name == "mlflow" and name not in known):
                tracker.store_init_configuration(tracked_values(recipe))
        except Exception as error:
            kept = f" (its run {ids[name]} is named in {out / RUN_IDS})" if name in known else ""
            raise ValueError(
                f"tracker {name!r} does not start{kept}: {_line(error)}; --trackers '[]' goes without"
            ) from error
    _write(out / RUN_IDS, ids)


def _read(path: Path) -> dict[str, str]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write(path: Path, ids: dict[str, str]) -> None:
    if not ids:
        path.unlink(missing_ok=True)  # of a run that was here before
        return
    aside = path.with_name(path.name + ".part")
    aside.write_text(json.dumps(ids, indent=1), encoding="utf-8")
    os.replace(aside, path)


def _create(
    name: str, accelerator: Accelerator, out: Path, ids: dict[str, str], first_epoch: int
) -> GeneralTracker:
    if name == "tensorboard":
        return TensorBoardTracker(name, accelerator.logging_dir, purge_step=first_epoch + 1)
    run_name = out.resolve().name
    if name == "wandb":
        ids[name] = ids.get(name) or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:12]
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        return WandBTracker(project, name=run_name, id=ids[name], resume="allow", dir=str(out.resolve()))
    artifacts = _choose_store(out)
    return MLflowTracker(PROJECT, run_name=run_name, run_id=ids.get(name), logging_dir=artifacts)


def _choose_store(out: Path) -> str | None:
    """MLflow writes to MLFLOW_TRACKING_URI, or into the run's folder; returns where its artifacts go there."""
    mlflow = importlib.import_module("mlflow")
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given is not None:
        mlflow.set_tracking_uri(given)
        return None
    mlflow.set_tracking_uri(f"sqlite:///{(out.resolve() / 'mlflow.db').as_posix()}")
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # MLflow put it there, and the next run's folder is another
    return (out.resolve() / "mlflow").as_uri()


# ------------------------------------------------------------------ logging and ending


def _log(failures: dict[GeneralTracker, int], entry: Mapping[str, float]) -> None:
    """Log to each tracker by itself: one that fails takes no other with it."""
    values = {name: value for name, value in entry.items() if name != "epoch"}
    for tracker, failed in failures.items():
        if failed >= PATIENCE:
            continue
        try:
            tracker.log(values, step=int(entry["epoch"]))
            failures[tracker] = 0
        except Exception as error:
            failures[tracker] = failed + 1
            if failed == 0:
                text = "tracker %s fails, the training goes on and metrics.jsonl has every epoch: %s"
                _logger.warning(text, tracker.name, _line(error))
            elif failed + 1 == PATIENCE:
                _logger.warning("tracker %s failed %d times and is left out from now on", tracker.name, PATIENCE)


def _finish(tracker: GeneralTracker, ending: str) -> None:
    if ending != "finished" and tracker.name == "wandb":
        tracker.tracker.finish(exit_code=255 if ending == "killed" else 1)
    elif ending != "finished" and tracker.name == "mlflow":
        importlib.import_module("mlflow").end_run(ending.upper())
    else:
        tracker.finish()


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
