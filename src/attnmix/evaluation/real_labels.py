"""ImageNet-ReaL: ImageNet's validation images relabelled by people, with all that is in them (Beyer 2020)."""

import json
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from timm.data import ImageNetInfo
from torch import Tensor
from torch.utils.data import IterableDataset

from attnmix.evaluation.exam import Batch, Exam

_STEM = re.compile(r"ILSVRC2012_val_(\d{8})(_n\d{8})?")  # Hugging Face's copy puts the synset behind


def real_labels() -> list[list[int]]:
    """For each of the 50000 validation images the numbers of its classes, of 1000; some have none."""
    table = pkgutil.get_data("timm.data", "_info/imagenet_real_labels.json")
    assert table is not None
    return json.loads(table)


def validation_number(name: str) -> int | None:
    """Which validation image a file is, from 0; None for any other file."""
    match = _STEM.fullmatch(Path(name).stem)
    number = int(match[1]) - 1 if match else -1
    return number if 0 <= number < 50_000 else None


def real_top1(predictions: Sequence[int], labels: Sequence[Sequence[int]]) -> tuple[float | None, int]:
    """Percentage of images whose prediction is among their labels, and how many images have any.

    The others are left out, as in the paper; None where no image has a label.
    """
    right = [guess in known for guess, known in zip(predictions, labels, strict=True) if known]
    return (100 * sum(right) / len(right) if right else None), len(right)


class RealLabels:
    """Watches the predictions on ImageNet's validation images: two numbers are kept of each."""

    def __init__(self, exam: Exam, outputs: Tensor) -> None:
        """`outputs` `[K]`: ImageNet's number of each of the data's classes."""
        self.images = exam.data.images
        self.outputs = outputs
        self.index: list[Tensor] = []
        self.predictions: list[Tensor] = []

    @classmethod
    def of(cls, exam: Exam) -> "RealLabels | None":
        """For data whose files are named as ImageNet's validation images and a model of ImageNet's classes.

        None for any other.
        """
        images, columns = exam.data
        if isinstance(images, IterableDataset) or len(images) == 0 or validation_number(images.name_of(0)) is None:
            return None
        numbers = {synset: number for number, synset in enumerate(ImageNetInfo("imagenet-1k").label_names())}
        names = exam.subject.class_names or list(numbers)
        chosen = range(images.num_classes) if columns is None else columns.tolist()
        if max(chosen) >= len(names) or any(names[output] not in numbers for output in chosen):
            return None
        if not exam.subject.class_names and images.num_classes != len(numbers):
            return None  # outputs of unknown names are ImageNet's only if there are as many
        return cls(exam, torch.tensor([numbers[names[output]] for output in chosen]))

    def __call__(self, batch: Batch, logits: Tensor) -> None:
        """Note a batch's predictions, without waiting for the device."""
        self.index.append(batch.index)
        self.predictions.append(logits.argmax(dim=1).to(torch.int16))  # of at most 1000

    def top1(self) -> tuple[float | None, int]:
        """As `real_top1`, of all batches."""
        table = real_labels()
        found = [validation_number(self.images.name_of(number)) for number in torch.cat(self.index).tolist()]
        predictions = self.outputs[torch.cat(self.predictions).cpu().long()]
        return real_top1(predictions.tolist(), [[] if number is None else table[number] for number in found])
