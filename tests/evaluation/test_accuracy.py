import pytest
import torch
from accelerate import Accelerator
from sklearn.metrics import confusion_matrix, log_loss, top_k_accuracy_score
from torch import nn

from attnmix.evaluation.accuracy import evaluate_accuracy


def batches(classes, count=50):
    generator = torch.Generator().manual_seed(classes)
    images = torch.randn(count, classes, 1, 1, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    labels[:classes] = torch.arange(classes)  # every class occurs
    return images, labels, list(zip(images.split(16), labels.split(16), strict=True))


def test_accuracy_is_scikit_learns():
    images, labels, loader = batches(7)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))  # its logits are the pixels
    found = evaluate_accuracy(model, loader, 7, Accelerator(cpu=True))
    logits, classes = images.flatten(1), list(range(7))
    assert found["loss"] == pytest.approx(
        log_loss(labels, logits.double().softmax(dim=1), labels=classes), rel=1e-5
    )
    for name, k in (("top1", 1), ("top5", 5)):
        assert found[name] == pytest.approx(100 * top_k_accuracy_score(labels, logits, k=k, labels=classes))
    assert found["confusion"] == confusion_matrix(labels, logits.argmax(dim=1)).tolist()
    assert not model.training


def test_five_classes_or_fewer_have_no_top5():
    assert evaluate_accuracy(nn.Flatten(), batches(5)[2], 5, Accelerator(cpu=True))["top5"] is None


def test_nothing_to_evaluate_on():
    with pytest.raises(ValueError, match="not one image to evaluate on"):
        evaluate_accuracy(nn.Flatten(), [], 5, Accelerator(cpu=True))
