import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error

from attnmix.evaluation.confidence import (
    Bin,
    aupr,
    auroc,
    aurra,
    expected_calibration_error,
    reliability_bins,
    rms_calibration_error,
)


def answers(count, seed=0, *, steps=None):
    """Confidence and correct; `steps`: confidence in so many steps, for ties."""
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.05, 1, count)
    if steps:
        confidence = np.ceil(confidence * steps) / steps
    correct = random.uniform(size=count) < confidence**2
    return torch.tensor(confidence, dtype=torch.float32), torch.tensor(correct)


def test_ece_by_hand_where_accuracy_does_not_rise_with_confidence():
    confidence = torch.tensor([0.1, 0.2, 0.6, 0.7, 0.9, 0.95])
    correct = torch.tensor([True, True, False, False, True, False])
    # halves: (0.1, 0.2) accuracy 1, confidence 0.15; the other four accuracy 1/4, confidence 3.15/4
    wanted = (2 * 0.85 + 4 * abs(0.25 - 3.15 / 4)) / 6
    assert expected_calibration_error(confidence, correct, bins=2) == pytest.approx(wanted)
    # accuracies and confidences each sorted by themselves would be 0.25 with 0.15 and 1 with 3.15 / 4
    assert wanted != pytest.approx((2 * 0.1 + 4 * (1 - 3.15 / 4)) / 6)


def test_bins_have_their_upper_edge_and_none_where_empty():
    confidence = torch.tensor([0.0, 0.25, 0.26, 1.0], dtype=torch.float64)
    correct = torch.tensor([False, True, True, True])
    assert reliability_bins(confidence, correct, bins=4) == [
        Bin(0, 0.25, 2, 0.125, 0.5),
        Bin(0.25, 0.5, 1, 0.26, 1.0),
        Bin(0.5, 0.75, 0, None, None),
        Bin(0.75, 1, 1, 1.0, 1.0),
    ]


def test_ece_is_torchmetrics_where_no_confidence_is_one():
    confidence, correct = answers(500)
    wanted = binary_calibration_error(confidence, correct.long(), n_bins=15)
    assert expected_calibration_error(confidence, correct) == pytest.approx(wanted.item(), rel=1e-5)


def test_certainty_shares_a_bin_with_the_nearly_certain():
    confidence, correct = torch.tensor([1.0, 0.96]), torch.tensor([True, False])
    assert expected_calibration_error(confidence, correct) == pytest.approx(0.98 - 0.5)


@pytest.mark.parametrize(("count", "bins"), [(60, 1), (100, 1), (199, 1), (250, 2), (1000, 10)])
def test_rms_calibration_error_is_the_loop(count, bins):
    confidence, correct = answers(count, seed=count)
    pairs = sorted(zip(confidence.tolist(), correct.tolist(), strict=True))
    total = 0.0
    for number in range(bins):
        end = len(pairs) if number == bins - 1 else 100 * (number + 1)
        part = pairs[100 * number : end]
        accuracy = sum(right for _, right in part) / len(part)
        total += len(part) / count * (accuracy - sum(sure for sure, _ in part) / len(part)) ** 2
    assert rms_calibration_error(confidence, correct) == pytest.approx(math.sqrt(total))


def test_rms_calibration_error_counts_the_most_confident_bin():
    confidence = torch.cat([torch.full((100,), 0.5), torch.full((100,), 0.9)])
    correct = torch.cat([torch.arange(100) < 50, torch.arange(100) < 40])  # calibrated, then half a unit off
    assert rms_calibration_error(confidence, correct) == pytest.approx(0.5 / 2**0.5)


def test_aurra_by_hand():
    confidence = torch.tensor([0.3, 0.9, 0.6])
    assert aurra(confidence, torch.tensor([True, True, False])) == pytest.approx((1 + 1 / 2 + 2 / 3) / 3)
    # two equals, one of them right: half a right answer each
    tied = torch.tensor([0.3, 0.6, 0.6])
    assert aurra(tied, torch.tensor([True, True, False])) == pytest.approx((1 / 2 + 1 / 2 + 2 / 3) / 3)


def test_aurra_is_the_double_loop():
    confidence, correct = answers(300)
    order = sorted(range(300), key=lambda i: -confidence[i].item())
    curve = [sum(bool(correct[i]) for i in order[:k]) / k for k in range(1, 301)]
    assert aurra(confidence, correct) == pytest.approx(sum(curve) / 300)


def test_aurra_of_ties_is_the_mean_over_their_orders():
    confidence, correct = answers(12, steps=4)
    draws, curves = np.random.default_rng(1), []
    for _ in range(4000):
        order = np.lexsort((draws.random(12), -confidence.numpy()))
        right = correct.numpy()[order]
        curves.append((right.cumsum() / np.arange(1, 13)).mean())
    assert aurra(confidence, correct) == pytest.approx(np.mean(curves), abs=5 * np.std(curves) / 4000**0.5)


@pytest.mark.parametrize("measure", [aurra, rms_calibration_error, expected_calibration_error])
def test_the_order_of_images_does_not_matter(measure):
    confidence, correct = answers(1000, steps=7)
    order = torch.randperm(1000)
    assert measure(confidence[order], correct[order]) == pytest.approx(measure(confidence, correct), rel=1e-12)


@pytest.mark.parametrize("steps", [None, 6])
def test_detection_is_scikit_learns(steps):
    known, outliers = answers(400, 1, steps=steps)[0], 0.9 * answers(150, 2, steps=steps)[0]
    score, truth = -torch.cat([known, outliers]), torch.arange(550) >= 400
    assert aupr(known, outliers) == pytest.approx(average_precision_score(truth, score), abs=1e-5)
    assert auroc(known, outliers) == pytest.approx(roc_auc_score(truth, score), abs=1e-5)


def test_detection_tells_the_smallest_differences():
    step = torch.finfo(torch.float32).eps
    nearly, certain = torch.full((5,), 1 - step), torch.ones(5)
    assert (aupr(certain, nearly), auroc(certain, nearly)) == (1.0, 1.0)
    low = torch.full((5,), 1e-4)
    assert auroc(torch.nextafter(low, torch.ones(5)), low) == 1.0
    assert auroc(low, low) == 0.5


@pytest.mark.parametrize("measure", [aurra, rms_calibration_error, expected_calibration_error])
def test_what_is_no_confidence(measure):
    right = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"confidence 1\.5: expected a probability from 0 to 1"):
        measure(torch.tensor([0.5, 1.5]), right)
    with pytest.raises(ValueError, match="confidence nan: expected a probability"):
        measure(torch.tensor([0.5, math.nan]), right)
    with pytest.raises(ValueError, match=r"\(3,\) and correct \(2,\): expected \[N\] both"):
        measure(torch.ones(3), right)
    with pytest.raises(ValueError, match="at least one image"):
        measure(torch.ones(0), right[:0])


def test_detection_needs_both_kinds():
    with pytest.raises(ValueError, match="at least one image"):
        aupr(torch.ones(3), torch.ones(0))
