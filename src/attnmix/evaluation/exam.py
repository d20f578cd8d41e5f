"""What a question gets: a model, data to ask it on, truth where it is known, and batches of these."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from attnmix.data import LabelledImages
from attnmix.evaluation.subject import Subject


class Answer(TypedDict, total=False):
    """What a question came to, as JSON takes it; a question gives all but the last three.

    Percentages are 0 to 100, every value a finite number or None, and names say the unit.

    Keys:
        values: the numbers of the summary, by name ("top-1 %").
        tables: all numbers, by table a list of flat records with the same keys: a CSV file each.
        notes: what a reader has to know to read them: settings, what was left out.
        arrays: pictures and maps for figures, kept in a file beside the answer.
        images: how many images were looked at (of the data asked for first).
        skipped: names of unreadable images.
        seconds: that it took.
    """

    values: dict[str, float | None]
    tables: dict[str, list[dict[str, Any]]]
    notes: list[str]
    arrays: dict[str, np.ndarray]
    images: int
    skipped: list[str]
    seconds: float


class Truth(Protocol):
    """What is known of where the objects are, in the model's input pixels, by number of the image."""

    def masks(self, index: Tensor) -> Tensor | None:
        """`[B, H, W]` int8: 1 object, 0 ground, -1 not to be counted; None where only boxes are known."""

    def boxes(self, index: Tensor) -> list[Tensor]:
        """For each image `[K, 4]` int64 (top, left, height, width); no rows where its boxes are unknown."""


class ImageSet(NamedTuple):
    """Images and which outputs of the model their classes are.

    Attributes:
        images: item i is (normalised image, label).
        columns: `[K]`, the model's output for each of the set's classes; None: they are the same, in order.
    """

    images: LabelledImages
    columns: Tensor | None = None

    def model_labels(self, labels: Tensor) -> Tensor:
        """Labels of the set as numbers of the model's outputs."""
        return labels if self.columns is None else self.columns.to(labels.device)[labels]


@dataclass(frozen=True)
class Batch:
    """Images of a set on the model's device.

    Attributes:
        images: `[B, C, H, W]`, normalised.
        labels: `[B]` int64, of the set's classes.
        index: `[B]` int64 on the CPU, which images of the set these are.
    """

    images: Tensor
    labels: Tensor
    index: Tensor


class Progress(Protocol):
    """Hears how far a question has come."""

    def begin(self, total: int | None, what: str = "") -> None:
        """A pass over `total` images begins (None: nobody knows how many)."""

    def advance(self, asked: int, read: int) -> None:
        """So many more were asked for, and so many of them could be read."""


class Silence:
    """Progress that nobody follows."""

    def begin(self, total: int | None, what: str = "") -> None:
        """Nothing."""

    def advance(self, asked: int, read: int) -> None:
        """Nothing."""


@dataclass
class Exam:
    """One model's exam.

    Attributes:
        subject: the model.
        data: images of its own classes.
        truth: where the objects of `data` are; None: unknown.
        shifted: sets of other images of (some of) its classes, by name.
        outliers: images of none of its classes; their labels mean nothing.
        scenes: images with object masks of any class (VOC), with their truth.
        saliency: the model whose attention says what is salient; None: the subject itself.
        batch_size: images at once.
        workers: processes that read images; a stream is read in this one.
        seed: of everything drawn.
        limit: at most so many images of each set, taken evenly from all of it; None: the question's own limit.
        progress: hears how far it is.
        fingerprints: what tells the data, and each other attribute above, from others of the same name.
    """

    subject: Subject
    data: ImageSet
    truth: Truth | None = None
    shifted: Mapping[str, ImageSet] = field(default_factory=dict)
    outliers: LabelledImages | None = None
    scenes: tuple[LabelledImages, Truth] | None = None
    saliency: Subject | None = None
    batch_size: int = 64
    workers: int = 0
    seed: int = 0
    limit: int | None = None
    progress: Progress = field(default_factory=Silence)
    fingerprints: Mapping[str, Any] = field(default_factory=dict)

    def batches(
        self, images: LabelledImages, *, limit: int | None = None, what: str = "", labelled: bool = True
    ) -> Iterator[Batch]:
        """The images of a set in order, unreadable ones left out.

        Args:
            images: the set.
            limit: the question's own: at most so many, evenly from the whole set (the first ones of a stream).
            what: a word for the progress bar.
            labelled: labels are asked for; without, they may be of no class.

        Raises:
            ValueError: there is not one image; a label of no class.
            OSError: more unreadable images than the set allows.
        """
        limit = self.limit if self.limit is not None else limit
        source, total = _in_order(images, limit, labelled=labelled)
        device = self.subject.device
        self.progress.begin(total, what)
        loader = DataLoader(
            source,
            batch_size=self.batch_size,
            # several readers of a stream would number its images alike, and decide which come first
            num_workers=0 if isinstance(images, IterableDataset) else self.workers,
            collate_fn=_collate,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # else each pass draws its workers' seeds from the global one
        )
        seen = 0
        for found, asked in _at_most(loader, limit if isinstance(images, IterableDataset) else None):
            read = 0
            if found is not None:
                pictures, labels, index = found
                read = len(index)
                yield Batch(pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True), index)
            self.progress.advance(asked, read)
            seen += read
        if seen == 0:
            raise ValueError("there is not one image to evaluate on")

    def first_images(self, count: int, images: LabelledImages | None = None) -> Batch:
        """At most `count` images of `data` (or of another set), taken evenly from the whole, in one batch.

        A greater limit of the exam's does not raise `count`: these images are all in memory at once.
        """
        bounded = replace(self, limit=count if self.limit is None else min(count, self.limit))
        found = list(bounded.batches(self.data.images if images is None else images))
        return Batch(
            torch.cat([batch.images for batch in found]),
            torch.cat([batch.labels for batch in found]),
            torch.cat([batch.index for batch in found]),
        )


@dataclass(frozen=True)
class Question:
    """A question that can be asked of a model.

    Attributes:
        name: what is typed.
        about: one line: what is measured, and in which paper.
        ask: answers it; may raise ValueError for what only shows on the way.
        missing: why it cannot be asked in this exam, and what would help; None: it can.
        uses: attributes of the exam that its answer depends on beside the model, `data`, `seed` and `limit`;
            "method" where it depends on how the model was trained.
    """

    name: str
    about: str
    ask: Callable[[Exam], Answer]
    missing: Callable[[Exam], str | None] = lambda exam: None
    uses: tuple[str, ...] = ()


def image_generator(seed: int, index: int, stream: int = 0) -> torch.Generator:
    """The generator of one image's draws: the same for each batch size, order and device.

    Args:
        seed: the exam's.
        index: the image's number in its set.
        stream: tells apart what is drawn for one image.
    """
    words = np.random.SeedSequence([seed, index, stream]).generate_state(2)
    return torch.Generator().manual_seed(int(words[0]) << 32 | int(words[1]))


def no_attention(exam: Exam) -> str | None:
    """Why a question about attention cannot be asked, or None."""
    return exam.subject.no_view or None


class _Readable(Dataset):
    """Items with their numbers; None for an image that cannot be read."""

    def __init__(self, read: Callable[[int], tuple[Any, int] | None], index: Sequence[int]) -> None:
        self.read = read
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Any:
        number = self.index[position]
        item = self.read(number)
        return None if item is None else (*item, number)


class _Stream(IterableDataset):
    """A stream's items with their numbers."""

    def __init__(self, images: Any, *, labelled: bool) -> None:
        self.images = images
        self.labelled = labelled

    def __iter__(self) -> Iterator[Any]:
        for number, (image, label) in enumerate(self.images):
            if self.labelled:
                self.images.check_label(number, label)
            yield image, label, number


def _in_order(images: LabelledImages, limit: int | None, *, labelled: bool) -> tuple[Dataset, int | None]:
    if isinstance(images, IterableDataset):
        return _Stream(images, labelled=labelled), limit
    size = len(images)
    count = size if limit is None else min(limit, size)
    # evenly over the whole set: folders are sorted by class
    index = range(size) if count == size else np.linspace(0, size - 1, count).astype(int).tolist()
    return _Readable(images.read_labelled if labelled else images.read, index), count


def _collate(items: list[Any]) -> tuple[Any, int]:
    """The readable items as tensors (None: there are none), and how many were asked for."""
    readable = [item for item in items if item is not None]
    return (default_collate(readable) if readable else None), len(items)


def _at_most(loader: Iterable[Any], limit: int | None) -> Iterator[Any]:
    """A stream's batches until `limit` images have come; the last is cut."""
    if limit is None:
        yield from loader
        return
    left = limit
    for found, asked in islice(loader, limit):
        yield ([part[:left] for part in found] if asked > left else found), min(asked, left)
        left -= asked
        if left <= 0:
            return
