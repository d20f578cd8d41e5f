"""The peak of memory does not know how many images there are."""

import resource
import subprocess
import sys

import pytest
import torch

from attnmix.data import LabelledImages
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.questions import QUESTIONS
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit

FEW, MANY, SIDE = 550, 1100, 64
ASKED = ("accuracy", "noise", "segmentation", "mixed", "regions")  # a pass over all, and those that take some


class MadeOnDemand(LabelledImages):
    """Each image is drawn when it is asked for."""

    class_names = tuple(map(str, range(NUM_CLASSES)))

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        return torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(index)), index % NUM_CLASSES


class Masks:
    """The same object in every image."""

    def boxes(self, index):
        return [torch.tensor([[10, 20, 30, 40]])] * len(index)

    def masks(self, index):
        found = torch.zeros(len(index), SIDE, SIDE, dtype=torch.int8)
        found[:, 10:40, 20:60] = 1
        return found


def peak_after(count):
    """Ask everything on so many images; MiB that this process has ever held."""
    options = {"img_size": SIDE, "patch_size": 16}
    subject = Subject(
        "x", tiny_vit(**options), [], (3, SIDE, SIDE), (0.5,) * 3, (0.5,) * 3, lambda: tiny_vit(**options)
    )
    exam = Exam(subject, ImageSet(MadeOnDemand(count)), truth=Masks(), batch_size=32)
    for name in ASKED:
        assert QUESTIONS[name].missing(exam) is None
        QUESTIONS[name].ask(exam)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.slow
def test_the_peak_does_not_grow_with_the_number_of_images():
    done = subprocess.run([sys.executable, "-m", "tests.evaluation.test_memory"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    few, many = map(float, done.stdout.split())
    held = (MANY - FEW) * 3 * SIDE**2 * 4 / 2**20  # what the images themselves would take: 26 MiB
    assert many - few < held / 4


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(peak_after(FEW), peak_after(MANY))
