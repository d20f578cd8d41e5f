"""How a model does on a set of images: one pass, which leaves a confidence and a flag of each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnmix.data import LabelledImages
from attnmix.evaluation.confidence import aurra, expected_calibration_error, rms_calibration_error
from attnmix.evaluation.exam import Batch, Exam, ImageSet

Watch = Callable[[Batch, Tensor], None]


@dataclass(frozen=True)
class Scores:
    """What came of a set, on the CPU.

    Attributes:
        confidence: `[N]` float32, the maximum softmax probability of each image.
        correct: `[N]` bool, whether the label's logit is the highest.
        class_images: `[K]` int64, images of each class.
        class_correct: `[K]` int64, of which right.
        top5_correct: images whose label is among the five highest; None with five classes or fewer.
    """

    confidence: Tensor
    correct: Tensor
    class_images: Tensor
    class_correct: Tensor
    top5_correct: int | None

    @property
    def images(self) -> int:
        """How many were looked at."""
        return len(self.correct)

    @property
    def top1(self) -> float:
        """In percent."""
        return 100 * int(self.correct.sum()) / self.images

    @property
    def top5(self) -> float | None:
        """In percent; None with five classes or fewer."""
        return None if self.top5_correct is None else 100 * self.top5_correct / self.images

    def summary(self) -> dict[str, float | None]:
        """Accuracy and calibration in percent, by the names they have in tables."""
        return {
            "top-1 %": self.top1,
            "top-5 %": self.top5,
            "ECE %": 100 * expected_calibration_error(self.confidence, self.correct),
            "RMS calibration error %": 100 * rms_calibration_error(self.confidence, self.correct),
            "AURRA %": 100 * aurra(self.confidence, self.correct),
        }


class Tally:
    """Counts batches on their device, without waiting for it."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self.class_images = torch.zeros(num_classes, dtype=torch.int64, device=device)
        self.class_correct = torch.zeros_like(self.class_images)
        self.top5_correct = torch.zeros((), dtype=torch.int64, device=device)
        self.confidence: list[Tensor] = []
        self.correct: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count logits `[B, K]` and labels `[B]`.

        Raises:
            ValueError: logits of another number of classes.
        """
        if logits.shape[1] != self.num_classes:
            raise ValueError(f"the model gives {logits.shape[1]} logits, the data has {self.num_classes} classes")
        rank = label_rank(logits, labels)
        correct = rank < 1
        self.class_images.index_add_(0, labels, torch.ones_like(labels))
        self.class_correct.index_add_(0, labels, correct.long())
        self.top5_correct += (rank < 5).sum()
        self.confidence.append(confidence(logits))
        self.correct.append(correct)

    def scores(self) -> Scores:
        """What all batches came to; waits for the device.

        Raises:
            ValueError: logits that are not finite.
        """
        return Scores(
            _finite(torch.cat(self.confidence).cpu()),
            torch.cat(self.correct).cpu(),
            self.class_images.cpu(),
            self.class_correct.cpu(),
            int(self.top5_correct) if self.num_classes > 5 else None,
        )


def confidence(logits: Tensor) -> Tensor:
    """Maximum softmax probability `[B]` of logits `[B, K]`."""
    return logits.softmax(dim=1).amax(dim=1)


def label_rank(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes come before the label, `[B]`: of higher logits, or of equal ones with a lower number.

    That is argmax's order, which `topk` does not keep among equals (half precision has many).
    """
    own = logits.gather(1, labels[:, None])
    numbers = torch.arange(logits.shape[1], device=logits.device)
    return ((logits > own) | ((logits == own) & (numbers < labels[:, None]))).sum(dim=1)


@torch.no_grad()  # not inference_mode: what a model caches here must serve training too
def score_images(exam: Exam, image_set: ImageSet, *, what: str = "", watch: Watch | None = None) -> Scores:
    """Ask the exam's model what is in each image of a set, among the set's classes.

    Args:
        exam: whose subject and batches.
        image_set: the images.
        what: a word for the progress bar.
        watch: is shown each batch and its logits `[B, K]`.

    Raises:
        ValueError: there is not one image; logits that are not finite, or of another number of classes.
    """
    device = exam.subject.device
    columns = None if image_set.columns is None else image_set.columns.to(device)  # once, not with each batch
    tally = Tally(image_set.images.num_classes, device)
    for batch in exam.batches(image_set.images, what=what):
        logits = exam.subject.logits(batch.images, columns)
        tally.add(logits, batch.labels)
        if watch is not None:
            watch(batch, logits)
    return tally.scores()


@torch.no_grad()
def confidences(exam: Exam, images: LabelledImages, columns: Tensor | None, *, what: str = "") -> Tensor:
    """Maximum softmax probability `[N]` among the outputs `columns` (None: all), whatever the labels say.

    Raises:
        ValueError: there is not one image; logits that are not finite.
    """
    columns = None if columns is None else columns.to(exam.subject.device)
    batches = exam.batches(images, what=what, labelled=False)
    found = [confidence(exam.subject.logits(batch.images, columns)) for batch in batches]
    return _finite(torch.cat(found).cpu())


def restriction(exam: Exam, image_set: ImageSet, name: str) -> list[str]:
    """A note where a set has only some of the model's classes; none where it has all."""
    classes = image_set.images.num_classes
    if image_set.columns is None or classes == len(exam.subject.class_names):
        return []
    return [f"{name}: logits restricted to the model's outputs for its {classes} classes"]


def unread(images: LabelledImages, name: str) -> list[str]:
    """A note on images that could not be read; none where all could."""
    count = len(images.unreadable)
    return [f"{name}: {count} images that cannot be read are left out"] if count else []


def _finite(confidence: Tensor) -> Tensor:
    broken = len(confidence) - int(confidence.isfinite().sum())
    if broken:
        raise ValueError(
            f"the model's logits are not finite for {broken} of {len(confidence)} images; a network that has "
            "diverged, or overflows in half precision"
        )
    return confidence
