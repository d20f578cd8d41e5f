import json

import pytest
import torch
from accelerate import Accelerator
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, recall_score, top_k_accuracy_score
from torch import nn
from torchmetrics.functional.classification import binary_calibration_error

from attnmix.data import UNREAD
from attnmix.evaluation.accuracy import QUESTION, evaluate_accuracy
from tests.evaluation.pixel_exam import pixel_exam, random_images


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


def test_what_stands_in_for_an_unreadable_image_is_not_counted():
    images, labels, loader = batches(7)
    marked = [labels.clone() for labels in labels.split(16)]
    marked[1][[0, 5, 9]] = UNREAD
    marked[3][:] = UNREAD  # a whole batch
    kept = torch.cat(marked) != UNREAD
    found = evaluate_accuracy(
        nn.Flatten(), [(pixels, with_marks) for (pixels, _), with_marks in zip(loader, marked, strict=True)],
        7, Accelerator(cpu=True),
    )  # fmt: skip
    expected = evaluate_accuracy(nn.Flatten(), [(images[kept], labels[kept])], 7, Accelerator(cpu=True))
    assert found == {**expected, "loss": pytest.approx(expected["loss"])}


def test_five_classes_or_fewer_have_no_top5():
    assert evaluate_accuracy(nn.Flatten(), batches(5)[2], 5, Accelerator(cpu=True))["top5"] is None


def test_nothing_to_evaluate_on():
    with pytest.raises(ValueError, match="not one image to evaluate on"):
        evaluate_accuracy(nn.Flatten(), [], 5, Accelerator(cpu=True))


# --- The question


def test_values_and_tables_are_of_the_images():
    images = random_images(60, 7)
    images.logits[:, 3] -= 50  # never said
    answer = QUESTION.ask(pixel_exam(images))
    labels, guesses = images.labels.numpy(), images.logits.argmax(dim=1).numpy()
    confidence, correct = images.logits.softmax(dim=1).amax(dim=1), torch.from_numpy(labels == guesses)
    values = answer["values"]
    assert values["top-1 %"] == pytest.approx(100 * accuracy_score(labels, guesses))
    assert values["top-5 %"] == pytest.approx(
        100 * top_k_accuracy_score(labels, images.logits, k=5, labels=list(range(7)))
    )
    assert values["ECE %"] == pytest.approx(
        100 * binary_calibration_error(confidence, correct.long(), n_bins=15).item(), rel=1e-5
    )
    # fewer than a hundred: one bin
    assert values["RMS calibration error %"] == pytest.approx(
        100 * abs(confidence.mean() - correct.float().mean()).item(), rel=1e-5
    )
    ranked = correct[confidence.argsort(descending=True)].tolist()
    assert values["AURRA %"] == pytest.approx(100 * sum(sum(ranked[:k]) / k for k in range(1, 61)) / 60)
    assert "ReaL top-1 %" not in values
    assert QUESTION.missing(pixel_exam(images)) is None

    recalls = recall_score(labels, guesses, average=None)
    assert [row["class"] for row in answer["tables"]["classes"]] == images.class_names
    assert [row["top-1 %"] for row in answer["tables"]["classes"]] == pytest.approx(list(100 * recalls))
    assert recalls[3] == 0
    bins = answer["tables"]["bins"]
    assert len(bins) == 15
    for row in bins:
        inside = (confidence > row["from"]) & (confidence <= row["to"])
        assert row["images"] == inside.sum()
        if row["images"]:
            assert row["mean confidence %"] == pytest.approx(100 * confidence[inside].mean().item(), rel=1e-5)
            assert row["accuracy %"] == pytest.approx(100 * correct[inside].float().mean().item(), rel=1e-5)
        else:
            assert row["mean confidence %"] is None
            assert row["accuracy %"] is None


def test_the_answer_is_json_where_classes_are_few_and_one_is_not_seen():
    images = random_images(20, 3)
    images.labels[images.labels == 2] = 0
    answer = QUESTION.ask(pixel_exam(images))
    assert "top-5 %" not in answer["values"]
    assert answer["tables"]["classes"][2] == {"class": "2", "images": 0, "top-1 %": None}
    json.dumps(answer, allow_nan=False)


def test_a_limit_of_the_exam_holds():
    images = random_images(50, 3)
    answer = QUESTION.ask(pixel_exam(images, limit=12))
    assert sum(row["images"] for row in answer["tables"]["classes"]) == 12
    assert sum(row["images"] for row in answer["tables"]["bins"]) == 12


def test_restricted_classes_are_told():
    images = random_images(12, 3, outputs=4, class_names=["a", "b", "c"])
    exam = pixel_exam(images, outputs=4, columns=torch.tensor([3, 0, 1]), class_names=["b", "c", "x", "a"])
    answer = QUESTION.ask(exam)
    guesses = images.logits[:, [3, 0, 1]].argmax(dim=1)
    assert answer["values"]["top-1 %"] == pytest.approx(100 * accuracy_score(images.labels, guesses))
    assert any("restricted" in note for note in answer["notes"])
