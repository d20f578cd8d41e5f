"""Small exams that tests can afford."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnmix.data import LabelledImages
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


class RandomImages(LabelledImages):
    """Random pixels of random classes; those in `broken` cannot be read."""

    def __init__(self, count: int, *, size: Sequence[int] = (16, 24), broken: Sequence[int] = ()) -> None:
        generator = torch.Generator().manual_seed(count)
        pixels = torch.rand(count, 3, *size, generator=generator)
        mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
        self.tensors = (pixels - mean) / std
        self.labels = torch.randint(NUM_CLASSES, (count,), generator=generator)
        self.class_names = [f"class {i}" for i in range(NUM_CLASSES)]
        self.broken = broken

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.tensors[index], int(self.labels[index])

    def read(self, index: int) -> tuple[Tensor, int] | None:
        return None if index in self.broken else self[index]


def pictures(subject: Subject, count: int, columns: Tensor | None = None) -> RandomImages:
    """Images that the model mostly classifies as labelled."""
    images = RandomImages(count, size=subject.image_size)
    with torch.no_grad():
        images.labels = subject.logits(images.tensors, columns).argmax(dim=1)
    images.labels[::4] = 0
    return images


def tiny_subject(label: str = "tiny", **options: Any) -> Subject:
    """A tiny ViT of `NUM_CLASSES` classes for images of 16x24 pixels."""
    names = [f"class {i}" for i in range(NUM_CLASSES)]
    return Subject(label, tiny_vit(**options), names, (3, 16, 24), MEAN, STD, lambda: tiny_vit(**options).eval())


def tiny_exam(count: int = 12, *, subject: Subject | None = None, **options: Any) -> Exam:
    """That subject on `count` random images."""
    return Exam(subject or tiny_subject(), ImageSet(RandomImages(count)), **{"batch_size": 5, **options})
