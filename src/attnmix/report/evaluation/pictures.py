"""What the models look at: attention and class activation over a few plain and a few mixed images."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from attnmix.report.evaluation import records as read
from attnmix.report.gallery import WEIGHTS, GalleryRow, gallery
from attnmix.report.results import MISSING, Results, number, show
from attnmix.report.sheet import MARGIN, Sheet, draw_map, drawable, outline
from attnmix.report.style import FAINT, INK, as_written, darker, method_styles, short

QUESTION = "pictures"
MODELS = 3  # on one sheet: more could not be told apart on a screen
CELL, GAP, BLOCK_GAP = 1.4, 0.06, 0.2  # inches
MODEL, HEAD, LINE, ROW_GAP = 0.3, 0.26, 0.2, 0.12
WRONG = "#b3261e"
CHARACTER = 0.066  # inches, of the small text


@dataclass(frozen=True)
class Kind:
    """One sort of sheet: which arrays it shows, and what is said beneath."""

    images: str
    table: str
    maps: tuple[tuple[str, str], ...]  # (title, array)
    instead: tuple[str, str] | None = None  # where no model has any of the maps
    pasted: str = ""
    lines: int = 1


UNMIXED = Kind("images", "unmixed", (("attention", "attention"), ("class activation", "activation")))
MIXED = Kind(
    "mixed_images",
    "mixed",
    (("for source class", "mixed_activation_source"), ("for target class", "mixed_activation_target")),
    ("attention", "mixed_attention"),
    "mixed_pasted",
    lines=2,
)


def picture_sheets(results: Results, arrays: read.Arrays, kind: Kind) -> Iterator[tuple[list[str], Figure]]:
    """Sheets of at most `MODELS` models: a row for each image, its maps by each model beside it.

    The images are those of the first model that has any. Beneath them are the true classes, beneath the maps
    what the model takes the image for, in red where that is wrong.
    """
    images = next(
        (found for found in (_array(arrays, label, kind.images) for label in arrays) if found is not None), None
    )
    maps = _maps(arrays, kind)
    labels = [
        label
        for label in read.model_labels(results)
        if any(_array(arrays, label, name) is not None for _, name in maps)
    ]
    if images is None or not labels:
        return
    sheets = math.ceil(len(labels) / MODELS)
    for part in np.array_split(np.array(labels, dtype=object), sheets):
        chosen = [str(label) for label in part]
        yield chosen, _sheet(results, arrays, kind, images, maps, chosen)


def mixed_gallery(results: Results, arrays: read.Arrays) -> Figure | None:
    """Source, target and mixed image of each model's own mixes, with the label weights; None without any."""
    styles = method_styles(read.model_labels(results))
    rows = list(gallery_rows(results, arrays))
    colors = {row.method: styles[label].color for label, row in rows}
    return gallery([row for _, row in rows], colors=colors) if rows else None


def gallery_rows(results: Results, arrays: read.Arrays) -> Iterator[tuple[str, GalleryRow]]:
    """The model and a row for each record of the table "gallery" that has its three pictures."""
    for label, records in read.table(results, QUESTION, "gallery").items():
        for i, record in enumerate(records):
            source, target, mixed, attention, pasted = (
                _row(_array(arrays, label, f"gallery_{name}"), i)
                for name in ("source", "target", "mixed", "attention", "pasted")
            )
            if source is None or target is None or mixed is None:
                continue
            row = GalleryRow(
                method=f"{short(label, 42)} · {record.get('method') or MISSING}",
                source=_pixels(source),
                target=_pixels(target),
                mixed=_pixels(mixed),
                attention=attention if attention is not None and np.isfinite(attention).any() else None,
                source_label=str(record.get("source label") or MISSING),
                target_label=str(record.get("target label") or MISSING),
                weights={name: number(record.get(name)) for name in WEIGHTS},
                pasted=pasted,
            )
            yield label, row


def _maps(arrays: read.Arrays, kind: Kind) -> list[tuple[str, str]]:
    """The maps that any model has."""
    maps = [
        (title, name)
        for title, name in kind.maps
        if any(_array(arrays, label, name) is not None for label in arrays)
    ]
    return maps or ([kind.instead] if kind.instead else [])


def _sheet(
    results: Results,
    arrays: read.Arrays,
    kind: Kind,
    images: np.ndarray,
    maps: Sequence[tuple[str, str]],
    labels: Sequence[str],
) -> Figure:
    block = len(maps) * CELL + (len(maps) - 1) * GAP
    width = 2 * MARGIN + CELL + len(labels) * (BLOCK_GAP + block)
    row_height = CELL + kind.lines * LINE + ROW_GAP
    sheet = Sheet(width, MARGIN + MODEL + HEAD + len(images) * row_height)
    styles = method_styles(read.model_labels(results))
    tables = read.table(results, QUESTION, kind.table)
    pasted = next(
        (found for found in (_array(arrays, label, kind.pasted) for label in arrays) if found is not None), None
    )
    lefts = [MARGIN + CELL + BLOCK_GAP + i * (block + BLOCK_GAP) for i in range(len(labels))]

    first_row = MARGIN + MODEL + HEAD
    sheet.write(MARGIN, first_row - HEAD / 2, "image", color=FAINT)
    for label, left in zip(labels, lefts, strict=True):
        name = short(label, int(block / (1.45 * CHARACTER)))
        sheet.write(left, MARGIN + MODEL / 2, name, color=darker(styles[label].color), weight="bold")
        for column, (title, _) in enumerate(maps):
            sheet.write(left + column * (CELL + GAP), first_row - HEAD / 2, title, color=FAINT)
    for i, image in enumerate(images):
        top = first_row + i * row_height
        image, region = _pixels(image), _row(pasted, i)
        axes = sheet.axes(MARGIN, top, CELL, CELL)
        axes.imshow(drawable(image), interpolation="nearest")
        outline(axes, region)
        known = next((records[i] for records in tables.values() if i < len(records)), {})
        _write_lines(sheet, MARGIN, top + CELL, CELL, [(text, INK) for text in _truth(known, kind)])
        for label, left in zip(labels, lefts, strict=True):
            for column, (_, name) in enumerate(maps):
                axes = sheet.axes(left + column * (CELL + GAP), top, CELL, CELL)
                values = _row(_array(arrays, label, name), i)
                draw_map(axes, image, values)
                if values is not None:
                    outline(axes, region)
            records = tables.get(label, [])
            said = _said(records[i], kind) if i < len(records) else []
            _write_lines(sheet, left, top + CELL, block, said)
    return as_written(sheet.figure)


def _truth(record: read.Record, kind: Kind) -> list[str]:
    if kind is UNMIXED:
        return [str(record.get("label") or MISSING)]
    return [str(record.get("source label") or MISSING), f"on {record.get('target label') or MISSING}"]


def _said(record: read.Record, kind: Kind) -> list[tuple[str, str]]:
    """What the model says of an image, line by line, each with its colour."""
    if kind is UNMIXED:
        right = record.get("predicted") == record.get("label")
        share = show(record.get("confidence %"), 0, unit=" %")
        return [(f"{record.get('predicted') or MISSING}, {share}", INK if right else WRONG)]
    true = {record.get("source label"), record.get("target label")}
    return [
        (f"{place}. {record.get(key) or MISSING}", INK if record.get(key) in true else WRONG)
        for place, key in ((1, "first"), (2, "second"))
    ]


def _write_lines(sheet: Sheet, left: float, top: float, width: float, lines: Sequence[tuple[str, str]]) -> None:
    for i, (text, color) in enumerate(lines):
        sheet.write(left, top + (i + 0.55) * LINE, short(text, int(width / CHARACTER)), color=color, size=8.5)


def _array(arrays: read.Arrays, label: str, name: str) -> np.ndarray | None:
    """An array of a model, if it has it and there is something in it."""
    held = arrays.get(label) or {}
    found = np.asarray(held[name]) if name in held else None
    return found if found is not None and found.size else None


def _row(array: np.ndarray | None, i: int) -> np.ndarray | None:
    return array[i] if array is not None and i < len(array) else None


def _pixels(image: np.ndarray) -> np.ndarray:
    """An image as floats 0..1."""
    return image / 255.0 if image.dtype == np.uint8 else image
