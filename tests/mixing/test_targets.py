import pytest
import torch
from timm.data.mixup import mixup_target

from attnmix.mixing import mix_targets, soft_targets


def test_smoothing_and_mixing_agree_with_timm():
    labels = torch.tensor([0, 2, 1, 2])
    ours = mix_targets(
        soft_targets(labels, num_classes=3, smoothing=0.1), torch.arange(4).flip(0), torch.full((4,), 0.3)
    )
    # timm's lam is the target's weight
    assert torch.allclose(ours, mixup_target(labels, 3, lam=0.7, smoothing=0.1), atol=1e-7)


def test_each_row_has_its_own_weight_and_sums_to_one():
    targets = soft_targets(torch.tensor([0, 1, 2]), num_classes=3)
    mixed = mix_targets(targets, torch.tensor([1, 2, 0]), torch.tensor([0.0, 0.25, 1.0]))
    assert mixed.tolist() == [[1, 0, 0], [0, 0.75, 0.25], [1, 0, 0]]


def test_soft_labels_pass_through_smoothed():
    soft = torch.tensor([[0.2, 0.8]], dtype=torch.float16)
    smoothed = soft_targets(soft, num_classes=2, smoothing=0.5)
    assert smoothed.dtype == torch.float32
    assert torch.allclose(smoothed, torch.tensor([[0.35, 0.65]]), atol=1e-3)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 5]), r"label 5 is outside 0\.\.2 \(3 classes\)"),
        (torch.tensor([-1, 2]), r"label -1 is outside 0\.\.2"),
        (torch.ones(2, 4), "soft labels have 4 classes, the method has 3"),
        (torch.ones(2), r"want \[B\] integers or \[B, 3\] floats"),
        (torch.ones(2, 3, dtype=torch.long), r"want \[B\] integers"),
    ],
)
def test_wrong_labels_are_named(labels, message):
    with pytest.raises(ValueError, match=message):
        soft_targets(labels, num_classes=3)
