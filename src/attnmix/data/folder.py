"""Folders of images, one sub-folder per class: found, checked, and opened through timm."""

from functools import partial
from pathlib import Path
from typing import Any

from timm.data import create_dataset

from attnmix.data.labelled import ReadableImages

LAYOUT = "expected SPLIT/CLASS/*.jpg (or .png, .jpeg), as in train/cat/1.jpg and val/cat/2.jpg"

MOST_CLASSES = 1_000_000

# A split may go by any of these names, as in timm; unlike timm we never fall back on the folder above.
_SYNONYMS = (("train", "training"), ("validation", "val", "valid", "eval", "evaluation"))


def split_folder(root: Path, split: str) -> Path:
    """The folder of a split: of its own name, or of a synonym ("val" for "validation").

    Raises FileNotFoundError that names what is missing and what is there instead.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {str(root)!r}; {LAYOUT}")
    names = [split, *(name for group in _SYNONYMS if split in group for name in group if name != split)]
    for name in names:
        if (root / name).is_dir():
            return root / name
    present = ", ".join(sorted(entry.name for entry in root.iterdir())[:10]) or "nothing"
    looked_for = ", ".join(names)
    raise FileNotFoundError(
        f"no split {split!r} in {str(root)!r} (looked for {looked_for}; found {present}); {LAYOUT}"
    )


def evaluation_folder(root: Path, split: str | None) -> Path:
    """The folder to evaluate on: of the split named, else of "validation" or "test", else `root` itself.

    Raises FileNotFoundError as `split_folder`.
    """
    if split is not None:
        return split_folder(root, split)
    names = (*_SYNONYMS[1], "test")
    return next((root / name for name in names if (root / name).is_dir()), root)


def open_folder(folder: Path, *, options: dict[str, Any], transform: Any, tolerated: int = 3) -> ReadableImages:
    """The images of one split's folder, labelled by class folder in natural order of their names.

    `options` are keywords of timm's folder reader (`class_map`). Greyscale and other modes become RGB;
    `tolerated` is `ReadableImages`'.
    Raises ValueError for a folder without class folders or without images.
    """
    class_folders = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if not class_folders:
        raise ValueError(f"no class folders in {str(folder)!r}; {LAYOUT}")
    try:
        reader = create_dataset("", root=str(folder), search_split=False, **options).reader
        check_class_numbers(reader.class_to_idx)
    except RuntimeError as error:  # timm found no image
        names = ", ".join(entry.name for entry in class_folders[:10])
        raise ValueError(f"no images in the class folders of {str(folder)!r} ({names}); {LAYOUT}") from error
    except Exception as error:  # of a class map's file, whatever its readers raise
        if isinstance(error, OSError) or not options.get("class_map"):
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"data_options class_map of {str(folder)!r}: {reason}") from error
    if "" in reader.class_to_idx:
        raise ValueError(f"images beside the class folders of {str(folder)!r}; {LAYOUT}")
    return ReadableImages(
        len(reader),
        reader.__getitem__,
        partial(reader.filename, absolute=True),
        class_names=names_by_index(reader.class_to_idx),
        transform=transform,
        tolerated=tolerated,
    )


def check_same_classes(train: list[str], evaluation: list[str], where: str) -> None:
    """ValueError naming the classes that only one of two splits has."""
    if train == evaluation:
        return
    only_train = sorted(set(train) - set(evaluation))
    only_evaluation = sorted(set(evaluation) - set(train))
    raise ValueError(
        f"the splits of {where} differ in their classes (folders with images): only the training split has "
        f"{', '.join(only_train) or 'none'}; "
        f"only the evaluation split has {', '.join(only_evaluation) or 'none'}"
    )


def check_class_numbers(class_to_index: Any) -> None:
    """Raise ValueError unless the classes are numbered from 0, and not far beyond their count."""
    for name, index in class_to_index.items():
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < MOST_CLASSES:
            raise ValueError(
                f"class {str(name)[:60]!r} has the number {str(index)[:60]}, want 0 to {MOST_CLASSES - 1}"
            )


def names_by_index(class_to_index: dict[Any, int]) -> list[str]:
    """Class names by index; several names of one class are joined, an index without one names itself."""
    names: dict[int, list[str]] = {}
    for name, index in class_to_index.items():
        names.setdefault(int(index), []).append(str(name))
    return [" / ".join(names.get(index, [str(index)])) for index in range(max(names, default=-1) + 1)]
