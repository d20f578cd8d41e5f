"""How `attnmix maps` makes label maps: the teacher's scores of every image, the best of them written down."""

import copy
import time
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from timm.data.model_config import resolve_input_data_config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from attnmix.data import LabelledImages
from attnmix.data.class_names import match_classes, model_class_names
from attnmix.data.label_map_writer import LabelMapWriter
from attnmix.data.label_maps import AboutMaps, digest_of
from attnmix.data.transforms import evaluation_transform
from attnmix.methods.teacher import score_maps
from attnmix.training.recipe import Recipe

BEST = 5  # classes in a cell, as in ReLabel and Token Labeling
SAVE_EVERY = 30.0  # seconds between notes of progress on disk
STRETCHED = "the whole image, stretched onto image_size"


def prepare(
    images: LabelledImages,
    teacher: nn.Module,
    recipe: Recipe,
    *,
    name: str,
    top: int | None,
    image_size: int | None,
) -> tuple[LabelledImages, Tensor | None, AboutMaps]:
    """The images as the teacher takes them, its outputs for the data's classes (None: all), and what the maps are.

    Raises:
        ValueError: data that cannot be numbered, or whose classes are not the teacher's; an image size that the
            teacher does not take; more classes asked for than there are.
    """
    if isinstance(images, IterableDataset):
        raise ValueError(f"label maps go by an image's number, and {recipe.data} is a stream: use data in files")
    if not len(images):
        raise ValueError(f"{recipe.data} {recipe.train_split} holds no images")
    inputs = resolve_input_data_config(teacher)
    channels, height, width = inputs["input_size"]
    if image_size is not None:
        height = width = image_size
    where = f"{recipe.data} {recipe.train_split}"
    like = next(teacher.parameters())
    example = score_maps(teacher, torch.zeros(2, channels, height, width, device=like.device, dtype=like.dtype))
    try:
        columns = match_classes(
            images.class_names, model_class_names(teacher), num_classes=example.shape[1], where=where
        )
    except ValueError as error:
        raise ValueError(f"the teacher {name} does not know the data's classes: {error}") from error
    classes = images.num_classes
    top = min(BEST, classes) if top is None else top
    if top > classes:
        raise ValueError(f"top is {top}, but {where} has {classes} classes")
    about = AboutMaps(
        count=len(images),
        grid=(example.shape[2], example.shape[3]),
        top=top,
        num_classes=classes,
        class_names=tuple(str(each) for each in images.class_names),
        data=where,
        digest=digest_of(images),
        teacher=name,
        image_size=(height, width),
        resized=STRETCHED,
    )
    seen: Any = copy.copy(images)
    seen.transform = evaluation_transform(
        (channels, height, width),
        mean=inputs["mean"],
        std=inputs["std"],
        crop_pct=1.0,
        crop_mode="squash",
        interpolation="bicubic",
    )
    return seen, columns, about


def best_classes(scores: Tensor, columns: Tensor | None, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits `[B, C, h, w]` the best in every cell, best first, of the data's classes alone.

    Returns:
        scores and classes `[B, top, h, w]`; and each image's best class over all cells, `[B]`.
    """
    scores = scores.float() if columns is None else scores.float()[:, columns.to(scores.device)]
    best = scores.topk(top, dim=1)
    return best.values, best.indices, scores.mean(dim=(2, 3)).argmax(dim=1)


def score_all(
    writer: LabelMapWriter,
    teacher: nn.Module,
    images: Any,
    columns: Tensor | None,
    recipe: Recipe,
    console: Console,
) -> float | None:
    """Score and write what is not there yet; the share of these images whose best class is their label."""
    like = next(teacher.parameters())
    about, right, known, saved = writer.about, 0, 0, time.monotonic()
    bars = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TextColumn("images"), TimeRemainingColumn())
    with writer, Progress(*bars, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("scoring", total=about.count, completed=writer.done)
        for pixels, labels, readable in _batches(images, writer.done, recipe, like.device):
            scores = torch.zeros(len(readable), about.top, *about.grid)
            classes = torch.zeros(len(readable), about.top, *about.grid, dtype=torch.int64)
            if pixels is not None:
                try:
                    found = score_maps(teacher, pixels.to(like.device, like.dtype))
                except torch.OutOfMemoryError as error:
                    raise ValueError(
                        f"batch_size {recipe.batch_size} does not fit on {like.device}: lower it"
                    ) from error
                values, indices, guesses = best_classes(found, columns, about.top)
                scores[readable], classes[readable] = values.cpu(), indices.cpu()
                right, known = right + int((guesses.cpu() == labels).sum()), known + len(labels)
            writer.write(scores, classes, readable.tolist())
            bar.update(shown, completed=writer.done)
            if time.monotonic() - saved > SAVE_EVERY:
                writer.save()
                saved = time.monotonic()
    return right / known if known else None


def _batches(
    images: Any, first: int, recipe: Recipe, device: torch.device
) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
    """Images from `first` on, in order: those that can be read, their labels, and which of the batch these are."""
    yield from DataLoader(
        ReadOrNone(images),
        sampler=range(first, len(images)),
        batch_size=recipe.batch_size,
        num_workers=recipe.loader.workers,
        collate_fn=collate_readable,
        pin_memory=recipe.loader.pin and device.type == "cuda",
    )


class ReadOrNone(Dataset[Any]):
    """A data set whose items are None where an image cannot be read."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __getitem__(self, index: int) -> Any:
        return self.images.read(index)

    def __len__(self) -> int:
        return len(self.images)


def collate_readable(items: list[Any]) -> tuple[Tensor | None, Tensor, Tensor]:
    """Images `[B', 3, H, W]` (None: none of them can be read), labels `[B']`, and which are readable, `[B]`."""
    there = [item for item in items if item is not None]
    pixels = torch.stack([image for image, _ in there]) if there else None
    return pixels, torch.tensor([label for _, label in there]), torch.tensor([item is not None for item in items])
