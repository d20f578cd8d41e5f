"""Does a model know when it is right? From its confidence [N], the maximum softmax probability, alone.

Shares are 0 to 1. Images are taken together whatever their order: those of equal confidence each count as right
as often as they are on average, where an order among them would matter.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

BINS = 15  # of equal width (Guo et al. 2017)
BIN_IMAGES = 100  # of equal mass (Hendrycks et al. 2019)


class Bin(NamedTuple):
    """Images whose confidence is above `low` and up to `high`; means are None where there are none."""

    low: float
    high: float
    images: int
    confidence: float | None
    accuracy: float | None


def reliability_bins(confidence: Tensor, correct: Tensor, *, bins: int = BINS) -> list[Bin]:
    """Accuracy by confidence, in bins of equal width: a reliability diagram.

    A bin has its upper edge, and the first also 0, as in Guo et al. 2017; torchmetrics gives bins their lower
    edge, and a confidence of exactly 1 a bin of its own.

    Args:
        confidence: `[N]` in [0, 1].
        correct: `[N]` bool.
        bins: how many.
    """
    confidence, correct = _checked(confidence, correct)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    number = torch.bucketize(confidence, edges[1:-1])
    images = torch.bincount(number, minlength=bins)
    means = [
        (torch.zeros(bins, dtype=torch.float64).index_add_(0, number, of) / images).tolist()
        for of in (confidence, correct)
    ]
    return [
        Bin(low, high, count, sure if count else None, right if count else None)
        for low, high, count, sure, right in zip(
            edges[:-1].tolist(), edges[1:].tolist(), images.tolist(), *means, strict=True
        )
    ]


def expected_calibration_error(confidence: Tensor, correct: Tensor, *, bins: int = BINS) -> float:
    """Mean over images of |accuracy - mean confidence| of their bin (Guo et al. 2017, eq. 3).

    Arguments as `reliability_bins`.
    """
    found = reliability_bins(confidence, correct, bins=bins)
    gaps = (
        each.images * abs(each.accuracy - each.confidence)
        for each in found
        if each.accuracy is not None and each.confidence is not None
    )
    return sum(gaps) / sum(each.images for each in found)


def rms_calibration_error(confidence: Tensor, correct: Tensor, *, bin_images: int = BIN_IMAGES) -> float:
    """Root of the mean over images of (accuracy - mean confidence)^2 of their bin, in bins of equal mass.

    Hendrycks et al. 2019 (ImageNet-A and -O), reported by TransMix in Table 4. The images are put in order of
    confidence and every `bin_images` are a bin; the rest joins the last. Every bin counts here: the authors'
    program leaves the last one, the most confident images, out.

    Args:
        confidence: `[N]` in [0, 1].
        correct: `[N]` bool.
        bin_images: images of a bin; fewer in all are one bin.
    """
    confidence, correct = _by_confidence(*_checked(confidence, correct))
    last = max(len(confidence) // bin_images, 1) - 1
    number = (torch.arange(len(confidence)) // bin_images).clamp_max(last)
    gaps = torch.zeros(last + 1, dtype=torch.float64).index_add_(0, number, correct - confidence)
    images = torch.bincount(number)
    return float((gaps.square() / images).sum().div(len(confidence)).sqrt())


def aurra(confidence: Tensor, correct: Tensor) -> float:
    """Area under the response rate accuracy curve (Hendrycks et al. 2019).

    Accuracy among the k most confident images, averaged over k = 1..N.

    Args:
        confidence: `[N]` in [0, 1].
        correct: `[N]` bool.
    """
    _, correct = _by_confidence(*_checked(confidence, correct))
    answered = torch.arange(1, len(correct) + 1)
    return float((correct.flip(0).cumsum(0) / answered).mean())


def aupr(known: Tensor, outliers: Tensor) -> float:
    """Average precision of finding the outliers by a low confidence; by chance it is their share of all images.

    Args:
        known: `[N]` confidence in images of the model's classes.
        outliers: `[M]` confidence in images of none of them.
    """
    return float(binary_average_precision(*_detection(known, outliers)))


def auroc(known: Tensor, outliers: Tensor) -> float:
    """How likely the confidence in an outlier is the lower one (ties: half); arguments as `aupr`."""
    return float(binary_auroc(*_detection(known, outliers)))


def _detection(known: Tensor, outliers: Tensor) -> tuple[Tensor, Tensor]:
    parts = [
        _checked(each, torch.full(each.shape, truth))[0] for each, truth in ((known, False), (outliers, True))
    ]
    # 1 - confidence, in double precision: torchmetrics takes scores out of [0, 1] for logits, and squashes them
    return 1 - torch.cat(parts), torch.cat([torch.zeros(len(known)), torch.ones(len(outliers))]).long()


def _checked(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Both on the CPU in double precision."""
    if confidence.ndim != 1 or confidence.shape != correct.shape or len(confidence) == 0:
        raise ValueError(
            f"confidence {tuple(confidence.shape)} and correct {tuple(correct.shape)}: expected [N] both, of at "
            "least one image"
        )
    confidence = confidence.detach().cpu().double()
    outside = ~((confidence >= 0) & (confidence <= 1))
    if outside.any():
        raise ValueError(f"confidence {confidence[outside][0].item()}: expected a probability from 0 to 1")
    return confidence, correct.detach().cpu().double()


def _by_confidence(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """From least to most confident, `correct` averaged over images of equal confidence."""
    confidence, order = confidence.sort()
    _, group, images = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    right = torch.zeros(len(images), dtype=torch.float64).index_add_(0, group, correct[order])
    return confidence, (right / images)[group]
