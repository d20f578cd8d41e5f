"""Does attention find the object? Boxes of the attention map against ground truth (TransMix Table 5).

MaxBoxAcc is of Choe et al., "Evaluating Weakly Supervised Object Localization Methods Right" (CVPR 2020). All of
it is to be read beside controls that need no trained attention: photographs have their objects in the middle.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor
from torchvision.ops import box_iou

from attnmix.data.scenes import boxes_of
from attnmix.evaluation.exam import Answer, Exam, Question, no_attention
from attnmix.evaluation.score_maps import (
    ATTENTION,
    about_attention,
    score_maps,
    threshold_mass,
    to_image_size,
)

LIMIT = 1000  # finding connected components is slow
MASS, OVERLAP = 0.9, 0.5
THRESHOLDS = tuple(step / 20 for step in range(21))
NAMED = 5  # images without a box that a note names


def best_iou(box: Tensor, truth: Tensor) -> float:
    """Greatest intersection over union of a box `[4]` with an image's `[K, 4]`: (top, left, height, width)."""
    return float(box_iou(_corners(box[None]), _corners(truth)).max())


def mass_boxes(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """The one tight box of all tokens that hold 0.9 of a map's total (TransMix section 4.4).

    Args:
        scores: `[B, gh, gw]`.
        size: height and width of the image in pixels.

    Returns:
        `[B, 4]` int64 in pixels, on the CPU.
    """
    # boxes_of wants the first of equal maxima, which a GPU need not give
    return boxes_of(to_image_size(threshold_mass(scores, MASS), size).cpu())


def normalised_maps(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps `[B, gh, gw]` brought to pixels bilinearly, then to 0..1 each, in Choe et al.'s order: `[B, H, W]`.

    1 everywhere for a map that is equal everywhere.
    """
    pixels = F.interpolate(scores[:, None].float(), size, mode="bilinear", align_corners=False)[:, 0]
    low, high = pixels.amin(dim=(1, 2), keepdim=True), pixels.amax(dim=(1, 2), keepdim=True)
    # by the tokens: pixels between equal tokens may differ in their last bit
    equal = (scores == scores[:, :1, :1]).flatten(1).all(dim=1)[:, None, None] | (low == high)
    return torch.where(equal, 1.0, (pixels - low) / torch.where(equal, 1.0, high - low))


def component_boxes(scores: np.ndarray) -> Tensor:
    """At each of `THRESHOLDS` the tight box of the largest 4-connected part of {score >= threshold}.

    Args:
        scores: `[H, W]` from 0 to 1, both of which occur (or 1 everywhere).

    Returns:
        `[21, 4]` int64 (top, left, height, width); of parts of the same size the first in the order of pixels.
    """
    boxes = []
    for threshold in THRESHOLDS:
        parts, _ = ndimage.label(scores >= threshold)
        largest = int(np.bincount(parts.ravel())[1:].argmax()) + 1
        rows, columns = ndimage.find_objects(parts, max_label=largest)[largest - 1]
        boxes.append((rows.start, columns.start, rows.stop - rows.start, columns.stop - columns.start))
    return torch.tensor(boxes)


@dataclass
class BoxScores:
    """Counts of how well one map's boxes meet the truth, over images as they come."""

    images: int = 0
    overlap: float = 0.0
    hits: int = 0
    hits_at: np.ndarray = field(default_factory=lambda: np.zeros(len(THRESHOLDS), np.int64))

    def add(self, scores: Tensor, truth: list[Tensor], size: tuple[int, int]) -> None:
        """Count images in.

        Args:
            scores: `[B, gh, gw]`.
            truth: for each image at least one box, `[K, 4]` (top, left, height, width).
            size: height and width of the images in pixels.
        """
        for box, known in zip(mass_boxes(scores, size), truth, strict=True):
            found = best_iou(box, known)
            self.overlap += found
            self.hits += found >= OVERLAP
        distinct, number = scores.unique(dim=0, return_inverse=True)  # a prior is the same for all images
        boxes = [component_boxes(pixels) for pixels in normalised_maps(distinct, size).cpu().numpy()]
        for which, known in zip(number.tolist(), truth, strict=True):
            overlaps = box_iou(_corners(boxes[which]), _corners(known)).amax(dim=1)
            self.hits_at += (overlaps >= OVERLAP).numpy()
        self.images += len(truth)

    def record(self) -> dict[str, Any]:
        """The numbers, in percent; the best threshold is the lowest of several."""
        best = int(self.hits_at.argmax())
        return {
            "mIoU %": 100 * self.overlap / self.images,
            "box accuracy %": 100 * self.hits / self.images,
            "MaxBoxAcc %": 100 * int(self.hits_at[best]) / self.images,
            "best threshold": THRESHOLDS[best],
            "images": self.images,
        }


def _corners(boxes: Tensor) -> Tensor:
    """(top, left, height, width) as torchvision's (left, top, right, bottom)."""
    top, left, height, width = boxes.double().unbind(1)
    return torch.stack((left, top, left + width, top + height), dim=1)


def _ask(exam: Exam) -> Answer:
    assert exam.truth is not None
    maps = score_maps(exam.subject)
    scores = {name: BoxScores() for name in maps}
    without: list[str] = []
    left_out = 0
    for images, truth, unknown in _with_boxes(exam):
        left_out += len(unknown)
        without += unknown[: NAMED - len(without)]
        for name, read in maps.items():
            if truth:
                scores[name].add(read(images), truth, (images.shape[2], images.shape[3]))
    if scores[ATTENTION].images == 0:
        raise ValueError(f"none of the {left_out} images looked at has a box in view, such as {without[0]}")
    rows = [{"map": name, **found.record()} for name, found in scores.items()]
    notes = [
        about_attention(exam.subject),
        f"mIoU and box accuracy (IoU >= {OVERLAP}): one tight box of the tokens that hold {MASS} of the map",
        f"MaxBoxAcc: largest connected part of the map from 0 to 1, IoU >= {OVERLAP}, at the one best of the "
        f"thresholds 0, 0.05, ..., 1 for these very images; threshold 0 keeps the whole image",
        "each box against the best of an image's boxes, cut to what the model sees of it",
    ]
    if left_out:
        more = ", ..." if left_out > len(without) else ""
        notes.append(f"left out {left_out} images without a box in view: {', '.join(without)}{more}")
    values = {key: rows[0][key] for key in ("mIoU %", "MaxBoxAcc %")}
    return Answer(values=values, tables={"scores": rows}, notes=notes)


def _with_boxes(exam: Exam) -> Iterator[tuple[Tensor, list[Tensor], list[str]]]:
    """The images of each batch that have boxes, these boxes, and the names of the others."""
    assert exam.truth is not None
    data = exam.data.images
    for batch in exam.batches(data, limit=LIMIT, what="localisation"):
        boxes = exam.truth.boxes(batch.index)
        known = [number for number, rows in enumerate(boxes) if len(rows)]
        unknown = [
            data.name_of(index) for index, rows in zip(batch.index.tolist(), boxes, strict=True) if not len(rows)
        ]
        yield batch.images[known], [boxes[number] for number in known], unknown


def _missing(exam: Exam) -> str | None:
    if reason := no_attention(exam):
        return reason
    if exam.truth is None:
        return (
            "give boxes: --annotations PATH (a folder of ImageNet XML files, or a COCO JSON file); the embedded "
            "data knows its own"
        )
    return None


QUESTION = Question(
    name="localisation",
    about="does attention box the object: mIoU (TransMix Table 5) and MaxBoxAcc (Choe et al. 2020)",
    ask=_ask,
    missing=_missing,
    uses=("truth",),
)
