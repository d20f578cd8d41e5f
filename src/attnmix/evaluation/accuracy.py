"""How often a model is right, and whether it knows when: accuracy, calibration, the confusion of classes."""

from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from attnmix.data import UNREAD
from attnmix.evaluation.confidence import BIN_IMAGES, BINS, reliability_bins
from attnmix.evaluation.exam import Answer, Exam, Question
from attnmix.evaluation.real_labels import RealLabels
from attnmix.evaluation.scores import Scores, restriction, score_images

__all__ = ["QUESTION", "evaluate_accuracy"]


@torch.no_grad()  # not inference_mode: what a model caches here must serve training too
def evaluate_accuracy(
    model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]], num_classes: int, accelerator: Accelerator
) -> dict[str, Any]:
    """Measure a model on a loader's images; leaves the model in evaluation mode.

    Args:
        model: `[B, C, H, W]` -> logits `[B, num_classes]`.
        loader: batches of images and `[B]` int64 labels, prepared by `accelerator`; `UNREAD` is not counted.
        num_classes: classes of the labels.
        accelerator: decides device and precision, and gathers the processes' shares.

    Returns:
        `loss`, the mean cross-entropy; `top1` and `top5` in percent (`top5` is None with five classes or
        fewer); `confusion`, `[num_classes][num_classes]` counts: confusion[truth][prediction].
    """
    device = accelerator.device
    options: dict[str, Any] = {"validate_args": False, "sync_on_compute": False}  # gathered below instead
    top1 = MulticlassAccuracy(num_classes, average="micro", **options).to(device)
    top5 = MulticlassAccuracy(num_classes, average="micro", top_k=min(5, num_classes), **options).to(device)
    confusion = MulticlassConfusionMatrix(num_classes, **options).to(device)
    loss_sum = torch.zeros((), device=device)
    images_seen = 0
    model.eval()
    for images, labels in loader:
        with accelerator.autocast():
            logits = model(images.to(device, non_blocking=True)).float()
        # Leaves out what pads the last batch of several processes.
        logits, labels = accelerator.gather_for_metrics((logits, labels.to(device, non_blocking=True)))
        is_read = labels != UNREAD
        logits, labels = logits[is_read], labels[is_read]
        if len(labels) == 0:  # which torchmetrics refuses
            continue
        loss_sum += nn.functional.cross_entropy(logits, labels, reduction="sum")
        images_seen += len(labels)
        top1.update(logits, labels)
        if num_classes > 5:
            top5.update(logits, labels)
        confusion.update(logits, labels)
    if images_seen == 0:
        raise ValueError("there is not one image to evaluate on")
    return {
        "loss": loss_sum.item() / images_seen,
        "top1": 100 * top1.compute().item(),
        "top5": 100 * top5.compute().item() if num_classes > 5 else None,
        "confusion": confusion.compute().tolist(),
    }


def ask_accuracy(exam: Exam) -> Answer:
    """Accuracy and calibration on the exam's data in one pass; on ImageNet's validation set, ReaL's labels too."""
    real = RealLabels.of(exam)
    scores = score_images(exam, exam.data, what="accuracy", watch=real)
    values: dict[str, float | None] = {
        name: value for name, value in scores.summary().items() if value is not None
    }
    notes = [
        f"ECE: {BINS} bins of equal width; RMS calibration error: bins of {BIN_IMAGES} images by confidence",
        *restriction(exam, exam.data, "data"),
    ]
    if real is not None:
        top1, labelled = real.top1()
        if top1 is not None:
            values["ReaL top-1 %"] = top1
        notes.append(f"ReaL (Beyer et al. 2020): {labelled} of {scores.images} images have a label there")
    return {
        "values": values,
        "tables": {"classes": _classes(exam.data.images.class_names, scores), "bins": _bins(scores)},
        "notes": notes,
    }


def _classes(names: list[str], scores: Scores) -> list[dict[str, Any]]:
    counts = zip(names, scores.class_images.tolist(), scores.class_correct.tolist(), strict=True)
    return [
        {"class": name, "images": images, "top-1 %": 100 * correct / images if images else None}
        for name, images, correct in counts
    ]


def _bins(scores: Scores) -> list[dict[str, Any]]:
    return [
        {
            "from": each.low,
            "to": each.high,
            "images": each.images,
            "mean confidence %": None if each.confidence is None else 100 * each.confidence,
            "accuracy %": None if each.accuracy is None else 100 * each.accuracy,
        }
        for each in reliability_bins(scores.confidence, scores.correct)
    ]


QUESTION = Question(
    name="accuracy",
    about="how often the model is right, by class, and how well it knows (ECE, RMS calibration error, AURRA)",
    ask=ask_accuracy,
)
