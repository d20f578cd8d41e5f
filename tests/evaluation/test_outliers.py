import json

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from attnmix.evaluation.outliers import QUESTION
from tests.evaluation.pixel_exam import PixelImages, pixel_exam, random_images

COLUMNS = torch.tensor([5, 0, 7])


def test_outliers_are_told_among_the_datas_classes():
    data = random_images(40, 3, outputs=8, class_names=["f", "a", "h"])
    others = PixelImages(1.5 * torch.randn(15, 8), torch.full((15,), 77), class_names=["elsewhere"])
    exam = pixel_exam(data, outputs=8, columns=COLUMNS, class_names=list("abcdefgh"), outliers=others)
    answer = QUESTION.ask(exam)
    truth = [0] * 40 + [1] * 15
    score = -torch.cat([data.logits, others.logits])[:, COLUMNS].softmax(dim=1).amax(dim=1)
    wanted = {
        "AUPR %": pytest.approx(100 * average_precision_score(truth, score), abs=1e-3),
        "AUROC %": pytest.approx(100 * roc_auc_score(truth, score), abs=1e-3),
    }
    assert answer["values"] == wanted
    assert answer["tables"]["detection"] == [
        {"images": 40, "outliers": 15, **wanted, "AUPR of chance %": pytest.approx(100 * 15 / 55)}
    ]
    assert any("restricted" in note and "3 classes" in note for note in answer["notes"])
    json.dumps(answer, allow_nan=False)


def test_alike_images_are_told_by_chance():
    same = PixelImages(torch.zeros(12, 4), torch.zeros(12))
    values = QUESTION.ask(pixel_exam(same, outliers=PixelImages(torch.zeros(4, 4), torch.zeros(4))))
    assert values["values"] == {"AUPR %": 25.0, "AUROC %": 50.0}
    assert values["tables"]["detection"][0]["AUPR of chance %"] == 25.0


def test_nothing_to_ask_without_outliers():
    data = random_images(10, 4)
    assert QUESTION.missing(pixel_exam(data, outliers=data)) is None
    assert "--outliers FOLDER" in QUESTION.missing(pixel_exam(data))
