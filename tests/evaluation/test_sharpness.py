import math

import pytest
import torch

from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.sharpness import LIMIT, QUESTION, gradient_map, sharpness
from attnmix.evaluation.subject import Subject
from tests.conftest import tiny_vit
from tests.evaluation.exams import MEAN, STD, RandomImages


def subject_of(model):
    return Subject("tiny", model, [], (3, 16, 24), MEAN, STD, fresh=lambda: model)


def looped(picture):
    """The two total variations and the variance of one map, from the equations."""
    rows, columns = len(picture), len(picture[0])
    one = two = 0.0
    for i in range(rows):
        for j in range(columns):
            down = abs(picture[i + 1][j] - picture[i][j]) if i + 1 < rows else 0.0
            across = abs(picture[i][j + 1] - picture[i][j]) if j + 1 < columns else 0.0
            one += down + across
            two += math.sqrt(down**2 + across**2)
    flat = [value for row in picture for value in row]
    mean = sum(flat) / len(flat)
    return [one, two, sum((value - mean) ** 2 for value in flat) / len(flat)]


def test_hand_computed_maps():
    corner = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])  # differences at the first place alone
    assert sharpness(corner)[0].tolist() == [2.0, pytest.approx(math.sqrt(2)), 3 / 16]
    middle = torch.zeros(1, 3, 3)
    middle[0, 1, 1] = 1.0  # from above and from the left 1 each, from itself 1 and 1
    assert sharpness(middle)[0].tolist() == [4.0, pytest.approx(2 + math.sqrt(2)), pytest.approx(8 / 81)]
    assert sharpness(torch.full((1, 3, 3), 1 / 9))[0].tolist() == [0.0, 0.0, 0.0]


def test_equals_loops_on_maps_that_are_not_square():
    maps = torch.rand(4, 3, 5)
    for found, picture in zip(sharpness(maps).tolist(), maps.tolist(), strict=True):
        assert found == [pytest.approx(value, rel=1e-5) for value in looped(picture)]


def test_gradient_map_is_that_of_each_image_alone():
    model = tiny_vit()
    subject = subject_of(model)
    images, labels, columns = torch.randn(3, 3, 16, 24), torch.tensor([1, 0, 1]), torch.tensor([4, 2])
    found = gradient_map(subject, images, labels, columns)
    for i in range(3):
        pixels = images[i : i + 1].clone().requires_grad_()
        logits = model(pixels)[0, [4, 2]]
        (-logits.log_softmax(0)[labels[i]]).backward()
        for token in range(24):
            top, left = token // 6 * 4, token % 6 * 4
            wanted = pixels.grad[0, :, top : top + 4, left : left + 4].abs().sum().item()
            assert found[i, token].item() == pytest.approx(wanted, rel=1e-4)
    assert not gradient_map(subject, images, labels).allclose(found)  # the other classes' outputs take part


def test_nothing_is_left_on_the_model():
    model = tiny_vit().eval()
    model.head.weight.requires_grad_(False)
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    images = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        found = gradient_map(subject_of(model), images, torch.tensor([0, 1]))
    assert not found.requires_grad
    assert not images.requires_grad
    assert images.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted


def test_answer_is_the_mean_over_images_of_maps_of_sum_1():
    subject = subject_of(tiny_vit())
    data = RandomImages(7)
    answer = QUESTION.ask(Exam(subject, ImageSet(data), batch_size=3))
    maps = {
        "attention": subject.saliency(data.tensors),
        "gradient": gradient_map(subject, data.tensors, data.labels),
    }
    for row in answer["tables"]["maps"]:
        pictures = (maps[row["map"]] / maps[row["map"]].sum(dim=1, keepdim=True)).unflatten(1, (4, 6)).tolist()
        wanted = torch.tensor([looped(picture) for picture in pictures]).mean(dim=0).tolist()
        assert [row["TV-L1"], row["TV-L2"], row["variance"]] == [
            pytest.approx(value, rel=1e-4) for value in wanted
        ]
        assert answer["values"][f"{row['map']} TV-L1"] == row["TV-L1"]
    assert [row["map"] for row in answer["tables"]["maps"]] == ["attention", "gradient"]
    assert not any("left out" in note for note in answer["notes"])


def test_classes_are_the_sets_own():
    subject, data = subject_of(tiny_vit()), RandomImages(7)
    answers = [
        QUESTION.ask(Exam(subject, ImageSet(data, columns)))["values"]
        for columns in (None, torch.tensor([3, 4, 0, 1, 2]))
    ]
    assert answers[0]["attention TV-L1"] == answers[1]["attention TV-L1"]
    assert answers[0]["gradient TV-L1"] != answers[1]["gradient TV-L1"]


def test_maps_that_are_0_are_left_out_and_counted():
    model = tiny_vit()
    with torch.no_grad():
        model.head.weight.zero_()
    answer = QUESTION.ask(Exam(subject_of(model), ImageSet(RandomImages(7))))
    assert answer["values"]["gradient TV-L1"] is None
    assert answer["values"]["attention TV-L1"] > 0
    assert "7 images left out of the gradient maps: theirs is 0 or not finite" in answer["notes"]


def test_looks_at_no_more_images_than_its_limit():
    seen = []

    class Counted(RandomImages):
        def read(self, index):
            seen.append(index)
            return self[index]

    QUESTION.ask(Exam(subject_of(tiny_vit(depth=1)), ImageSet(Counted(LIMIT + 100)), batch_size=100))
    assert len(seen) == LIMIT


def test_missing_without_attention():
    model = torch.nn.Conv2d(3, 2, 1)
    exam = Exam(subject_of(model), ImageSet(RandomImages(2)))
    assert "Conv2d" in QUESTION.missing(exam)
    assert QUESTION.missing(Exam(subject_of(tiny_vit()), exam.data)) is None
