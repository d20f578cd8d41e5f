import json

import pytest
import torch
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from attnmix.evaluation.exam import ImageSet
from attnmix.evaluation.shift import QUESTION
from tests.evaluation.pixel_exam import pixel_exam, random_images

NAMES = list("abcdefgh")
COLUMNS = torch.tensor([5, 0, 7, 2, 3, 6])


@pytest.fixture
def exam():
    sketches = random_images(40, 8, seed=1, class_names=NAMES)
    photos = random_images(25, 6, seed=2, outputs=8, class_names=[NAMES[i] for i in COLUMNS], broken=[3])
    shifted = {"sketches": ImageSet(sketches), "photos": ImageSet(photos, COLUMNS)}
    return pixel_exam(random_images(10, 8), class_names=NAMES, shifted=shifted)


def test_each_set_is_judged_among_its_own_classes(exam):
    answer = QUESTION.ask(exam)
    sketches, photos = (image_set.images for image_set in exam.shifted.values())
    kept = [number for number in range(25) if number != 3]
    first, second = answer["tables"]["sets"]
    logits, labels = photos.logits[kept][:, COLUMNS], photos.labels[kept]
    assert (first["set"], first["images"], first["classes"]) == ("sketches", 40, 8)
    assert (second["set"], second["images"], second["classes"]) == ("photos", 24, 6)
    assert first["top-1 %"] == pytest.approx(100 * accuracy_score(sketches.labels, sketches.logits.argmax(dim=1)))
    assert second["top-1 %"] == pytest.approx(100 * accuracy_score(labels, logits.argmax(dim=1)))
    assert second["top-1 %"] != pytest.approx(
        100 * accuracy_score(COLUMNS[labels], photos.logits[kept].argmax(dim=1))
    )
    assert second["top-5 %"] == pytest.approx(
        100 * top_k_accuracy_score(labels, logits, k=5, labels=list(range(6)))
    )
    sure, right = logits.softmax(dim=1).amax(dim=1), logits.argmax(dim=1) == labels
    assert second["RMS calibration error %"] == pytest.approx(
        100 * abs(sure.mean() - right.float().mean()).item(), rel=1e-4
    )
    assert list(first) == list(second)
    assert {"ECE %", "AURRA %"} < set(first)
    assert answer["values"] == {"sketches top-1 %": first["top-1 %"], "photos top-1 %": second["top-1 %"]}
    json.dumps(answer, allow_nan=False)


def test_notes_name_restricted_sets_and_unreadable_images(exam):
    assert QUESTION.ask(exam)["notes"] == [
        "photos: logits restricted to the model's outputs for its 6 classes",
        "photos: 1 images that cannot be read are left out",
    ]


def test_nothing_to_ask_without_shifted_sets(exam):
    assert QUESTION.missing(exam) is None
    assert "--shifted NAME=FOLDER" in QUESTION.missing(pixel_exam(random_images(10, 8)))
