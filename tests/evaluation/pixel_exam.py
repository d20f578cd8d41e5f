"""Exams whose model gives an image's pixels as its logits, so that every answer is known."""

import torch
from torch import nn

from attnmix.data import LabelledImages
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.subject import Subject


class PixelImages(LabelledImages):
    """Item i is (logits[i] as an image of one column, labels[i]); files by name where given."""

    def __init__(self, logits, labels, *, class_names=None, files=None, broken=()):
        self.logits, self.labels = logits, labels
        self.class_names = class_names or [str(number) for number in range(logits.shape[1])]
        self.files, self.broken = files, set(broken)

    def __len__(self):
        return len(self.logits)

    def __getitem__(self, index):
        return self.logits[index][:, None, None], int(self.labels[index])

    def read(self, index):
        return None if index in self.broken else self[index]

    @property
    def unreadable(self):
        return [self.name_of(index) for index in self.broken]

    def name_of(self, index):
        return super().name_of(index) if self.files is None else self.files[index]


def pixel_subject(outputs, class_names=()):
    model = nn.Sequential(nn.Flatten(), nn.Linear(outputs, outputs, bias=False))
    nn.init.eye_(model[1].weight)
    return Subject("pixels", model, list(class_names), (outputs, 1, 1), [0.0], [1.0], fresh=lambda: model)


def pixel_exam(images, *, outputs=None, columns=None, class_names=(), batch_size=16, **material):
    subject = pixel_subject(outputs or images.num_classes, class_names)
    return Exam(subject, ImageSet(images, columns), batch_size=batch_size, **material)


def random_images(count, classes, *, seed=0, **options):
    """Some right, some wrong; every class occurs. `outputs`: logits of more classes than the labels have."""
    generator = torch.Generator().manual_seed(seed)
    outputs = options.pop("outputs", classes)
    logits = 2 * torch.randn(count, outputs, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    labels[:classes] = torch.arange(classes)
    return PixelImages(logits, labels, **options)
