"""Where the models of `attnmix evaluate` are: runs, folders of runs, exports, checkpoints, timm's names."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import timm

from attnmix._nearest import nearest
from attnmix.commands.trained import EXPORT
from attnmix.evaluation.store import folder_name
from attnmix.methods import METHODS
from attnmix.training import Recipe, load_recipe
from attnmix.training.checkpoint import CHECKPOINT, load_checkpoint
from attnmix.training.loop import RECIPE
from attnmix.training.reading import recipe_from_saved

CONFIG = "config.json"
FORMS = "a run, a folder of runs, an exported model, a checkpoint.pt, a timm name, or TIMM_NAME@WEIGHTS_FILE"


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        label: its name in tables.
        name: what timm is asked for (`local-dir:FOLDER` for an export).
        weights: a file of weights for `name`.
        checkpoint: a training run's checkpoint, instead of a name.
        recipe: of the run that it comes from, where it does.
        run: the folder of that run.
    """

    label: str
    name: str = ""
    weights: Path | None = None
    checkpoint: Path | None = None
    recipe: Recipe | None = None
    run: Path | None = None


def find_sources(words: Sequence[str]) -> list[Source]:
    """What was typed, each word a source (a folder of runs: several), perhaps as LABEL=WORD.

    Raises:
        ValueError: nothing of this kind, the same label twice, or a file without the name of its model.
        FileNotFoundError: a path that is not there.
    """
    sources = [source for word in words for source in _find(word)]
    labels = [folder_name(source.label) for source in sources]
    for source, label in zip(sources, labels, strict=True):
        if labels.count(label) > 1:
            raise ValueError(
                f"two models would be called {source.label!r}: name them, as in {source.label}-1=..., "
                f"{source.label}-2=..."
            )
    return sources


def _find(word: str) -> list[Source]:
    label, equals, what = word.partition("=")
    if not equals or Path(word).expanduser().exists():
        label, what = "", word
    elif not label:
        raise ValueError(f"{word!r} has an empty label: want LABEL=MODEL")
    path = Path(what).expanduser()
    if path.is_dir():
        return _in_folder(path, label)
    if path.is_file():
        return [_in_file(path, label)]
    name, at, weights = what.partition("@")
    if at and not Path(weights).expanduser().is_file():
        raise FileNotFoundError(f"{what!r}: there is no file {weights!r}")
    if ":" not in name and not timm.is_model(name.partition(".")[0]):
        if "/" in what or what.endswith((".pt", ".pth", ".safetensors")):
            raise FileNotFoundError(f"{what!r} is not there; expected {FORMS}")
        raise ValueError(f"unknown model {what!r}{nearest(name, timm.list_models())}; expected {FORMS}")
    file = Path(weights).expanduser() if at else None
    return [Source(label or (file.stem if file else name), name, weights=file)]


def _in_folder(folder: Path, label: str) -> list[Source]:
    """A run's exported model, an exported model itself, or all runs in the folder."""
    found = _in_run(folder, label)
    if found is not None:
        return [found]
    inside = sorted(entry for parent in (folder, folder / "runs") if parent.is_dir() for entry in parent.iterdir())
    runs = [run for entry in inside if entry.is_dir() and (run := _in_run(entry, "")) is not None]
    if not runs:
        raise ValueError(
            f"{str(folder)!r} holds neither a model ({CONFIG}), nor a run, nor runs; expected {FORMS}"
        )
    if label and len(runs) > 1:
        raise ValueError(f"{label}={folder} holds {len(runs)} runs: one label cannot name them all")
    if len({run.recipe.seed for run in runs if run.recipe}) == 1:  # then the seed tells nothing
        seed = f"-seed{runs[0].recipe.seed}" if runs[0].recipe else ""
        runs = [dataclasses.replace(run, label=run.label.removesuffix(seed)) for run in runs]
    runs.sort(key=_by_method)
    return [dataclasses.replace(runs[0], label=label)] if label else runs


def _in_run(folder: Path, label: str) -> Source | None:
    for export, run in ((folder / EXPORT, folder), (folder, folder.parent)):
        if (export / CONFIG).is_file():
            is_run = export.name == EXPORT and (run / RECIPE).is_file()
            recipe = load_recipe(run / RECIPE) if is_run else None
            name = _named(run if is_run else export)
            return Source(label or name, f"local-dir:{export}", recipe=recipe, run=run if is_run else None)
    if (folder / CHECKPOINT).is_file():
        return _of_checkpoint(folder / CHECKPOINT, label)
    return None


def _of_checkpoint(path: Path, label: str) -> Source:
    saved = load_checkpoint(path).get("recipe")
    if not isinstance(saved, dict):
        raise ValueError(f"{path} holds no recipe, so that nothing says which model it is of")
    recipe = recipe_from_saved(saved, where=f" in {path}")
    return Source(label or _named(path.parent), checkpoint=path, recipe=recipe, run=path.parent)


def _by_method(run: Source) -> tuple[int, str]:
    """Runs stand in the order of METHODS: what mixes nothing first."""
    names = list(METHODS)
    method = "" if run.recipe is None else run.recipe.method
    return (names.index(method) if method in names else len(names)), run.label


def _named(folder: Path) -> str:
    return folder.resolve().name


def _in_file(path: Path, label: str) -> Source:
    if path.name == CHECKPOINT:
        return _of_checkpoint(path, label)
    if path.name == "model.safetensors" and (path.parent / CONFIG).is_file():
        return _in_folder(path.parent, label)[0]
    raise ValueError(
        f"{str(path)!r} does not say which model it is of: type TIMM_NAME@{path}, or the folder of its {CONFIG}"
    )
