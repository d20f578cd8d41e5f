import pytest
import torch
from torch import nn

from attnmix.evaluation.exam import Exam, ImageSet, image_generator
from attnmix.evaluation.shuffle import QUESTION, pieces_per_side
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.evaluation.exams import MEAN, STD, RandomImages, pictures


def subject_of(size=(16, 24)):
    """A linear model, to which every place matters; its grid is 16x12."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * size[0] * size[1], NUM_CLASSES))
    return Subject("tiny", model, [], (3, *size), MEAN, STD, fresh=tiny_vit)


def test_pieces_are_common_divisors_up_to_the_grid():
    assert pieces_per_side((224, 224), (14, 14)) == [1, 2, 4, 7, 8, 14]
    assert pieces_per_side((224, 224), (7, 7)) == [1, 2, 4, 7]
    assert pieces_per_side((16, 24), (4, 6)) == [1, 2, 4]
    assert pieces_per_side((16, 24), (4, 8)) == [1, 2, 4, 8]
    assert pieces_per_side((15, 16), (5, 4)) == [1]


@torch.no_grad()
def slow_rate(subject, images, pieces, seed, columns):
    """Image by image, piece by piece."""
    high, wide = (side // pieces for side in subject.image_size)
    right = 0
    for number in range(len(images)):
        image, label = images[number]
        order = torch.randperm(pieces**2, generator=image_generator(seed, number, pieces**2)).tolist()
        moved = torch.empty_like(image)
        for place, piece in enumerate(order if pieces > 1 else [0]):
            (top, left), (down, right_of) = divmod(place, pieces), divmod(piece, pieces)
            moved[:, top * high : (top + 1) * high, left * wide : (left + 1) * wide] = image[
                :, down * high : (down + 1) * high, right_of * wide : (right_of + 1) * wide
            ]
        right += subject.logits(moved[None], columns).argmax().item() == label
    return 100 * right / len(images)


@pytest.mark.parametrize("columns", [None, torch.tensor([3, 0, 1])])
def test_rates_equal_a_slow_loop_whatever_the_batch(columns):
    subject = subject_of()
    images = pictures(subject, 27, columns)
    wanted = [slow_rate(subject, images, pieces, 7, columns) for pieces in (1, 2, 4, 8)]
    assert len(set(wanted)) > 2
    answers = [QUESTION.ask(Exam(subject, ImageSet(images, columns), batch_size=size, seed=7)) for size in (3, 8)]
    rows = answers[0]["tables"]["grids"]
    assert [(row["pieces per side"], row["pieces"]) for row in rows] == [(1, 1), (2, 4), (4, 16), (8, 64)]
    assert [row["top-1 %"] for row in rows] == pytest.approx(wanted)
    assert answers[0]["values"] == {"shuffle, mean top-1 %": pytest.approx(sum(wanted[1:]) / 3)}
    assert answers[1] == answers[0]


def test_each_image_has_its_own_permutation_which_the_seed_decides(monkeypatch):
    subject = subject_of()
    images = pictures(subject, 27)
    images.tensors[:] = torch.arange(16.0).reshape(4, 4).repeat_interleave(4, 0).repeat_interleave(6, 1)
    seen = []
    logits = subject.logits
    monkeypatch.setattr(subject, "logits", lambda batch, columns: seen.append(batch) or logits(batch, columns))
    for seed in (0, 0, 1):
        QUESTION.ask(Exam(subject, ImageSet(images), seed=seed))
    assert len(seen) == 3 * 4
    whole, _, sixteen, _, _, _, again, _, _, _, other, _ = (batch[:, 0, ::4, ::6].flatten(1) for batch in seen)
    assert (whole == torch.arange(16.0)).all()
    assert len({tuple(row) for row in sixteen.tolist()}) == len(images)
    assert sixteen.sort(dim=1).values.equal(whole)
    assert again.equal(sixteen)
    assert not other.equal(sixteen)


def test_images_that_cannot_be_cut_are_told_beforehand():
    exam = Exam(subject_of((15, 16)), ImageSet(RandomImages(3)))
    assert "15x16 pixels cannot be cut into equal pieces" in QUESTION.missing(exam)
    assert QUESTION.missing(Exam(subject_of(), exam.data)) is None


def test_images_of_a_size_that_the_model_does_not_take_are_told_beforehand():
    subject = Subject("tiny", tiny_vit(), [], (3, 16, 25), MEAN, STD, fresh=tiny_vit)
    assert "25" in QUESTION.missing(Exam(subject, ImageSet(RandomImages(3))))
