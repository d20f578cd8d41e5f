import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnmix.evaluation.attack import QUESTION, pgd
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.evaluation.exams import MEAN, STD, pictures


def subject_of(model):
    return Subject("tiny", model, [], (3, 16, 24), MEAN, STD, fresh=tiny_vit)


@pytest.mark.parametrize(("step_size", "steps"), [(0.001, 10), (0.03, 10), (0.02, 1), (0.02, 2), (0.1, 0)])
def test_on_two_linear_classes_it_is_the_closed_form(step_size, steps):
    # the gradient's sign never changes there: it is that of the wrong class's weights less the right one's
    weight = torch.randn(2, 3 * 4 * 5)
    pixels, labels = torch.rand(6, 3, 4, 5), torch.tensor([0, 1, 1, 0, 1, 0])
    radius = 8 / 255
    found = pgd(lambda x: x.flatten(1) @ weight.T, pixels, labels, step_size=step_size, steps=steps, radius=radius)
    direction = torch.stack([weight[1 - label] - weight[label] for label in labels]).sign().reshape(pixels.shape)
    wanted = (pixels + min(steps * step_size, radius) * direction).clamp(0, 1)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_it_raises_the_loss_of_each_image_and_stays_in_the_ball_and_the_pixels():
    subject = subject_of(tiny_vit())
    pixels = torch.rand(9, 3, 16, 24).mul(1.4).sub(0.2).clamp(0, 1)  # many black and white pixels

    def logits_of(x):
        return subject.logits(subject.normalise(x))

    labels = logits_of(pixels).argmax(dim=1)
    found = pgd(logits_of, pixels, labels, step_size=0.01, steps=10, radius=0.03)
    assert (found - pixels).abs().max().item() == pytest.approx(0.03, abs=1e-6)
    assert found.min() >= 0
    assert found.max() <= 1
    before, after = (F.cross_entropy(logits_of(x), labels, reduction="none") for x in (pixels, found))
    assert (after > before).all()
    assert not found.requires_grad
    assert all(parameter.grad is None for parameter in subject.model.parameters())


def test_each_image_is_attacked_as_if_alone():
    subject = subject_of(tiny_vit().double())
    pixels, labels = torch.rand(5, 3, 16, 24).double(), torch.arange(5)

    def logits_of(x):
        return subject.view(subject.normalise(x))

    settings = {"step_size": 0.01, "steps": 4, "radius": 0.02}
    together = pgd(logits_of, pixels, labels, **settings)
    alone = [pgd(logits_of, pixels[i : i + 1], labels[i : i + 1], **settings) for i in range(5)]
    assert torch.allclose(together, torch.cat(alone))


def test_small_gradients_do_not_vanish_in_a_large_batch():
    # a few times float32's smallest number: their mean over 64 images would be 0
    def logits_of(x):
        score = x.flatten(1).sum(dim=1) * 1e-44
        return torch.stack([score, -score], dim=1)

    pixels, labels = torch.full((64, 1, 1, 1), 0.5), torch.zeros(64, dtype=torch.int64)
    found = pgd(logits_of, pixels, labels, step_size=0.1, steps=1, radius=0.1)
    assert found.flatten().tolist() == pytest.approx([0.4] * 64)


def slow_rate(subject, images, step_size, columns):
    """Image by image, the gradient by `backward` on normalised values."""
    right = 0
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    for number in range(len(images)):
        image, label = images[number]
        clean = image * std + mean
        pixels = clean.clone()
        for _ in range(10 if step_size else 0):
            variable = ((pixels - mean) / std)[None].requires_grad_()
            logits = subject.logits(variable, columns)[0]
            (logits.exp().sum().log() - logits[label]).backward()
            moved = pixels + step_size * variable.grad[0].sign()
            pixels = torch.min(torch.max(moved, clean - 8 / 255), clean + 8 / 255).clamp(0, 1)
        with torch.no_grad():
            right += subject.logits(((pixels - mean) / std)[None], columns).argmax().item() == label
    subject.model.zero_grad()
    return 100 * right / len(images)


@pytest.mark.parametrize("columns", [None, torch.tensor([3, 0, 1])])
def test_rates_equal_a_slow_loop_whatever_the_batch(columns):
    layers = [nn.Flatten(), nn.Linear(3 * 16 * 24, 16), nn.Tanh(), nn.Linear(16, NUM_CLASSES)]
    subject = subject_of(nn.Sequential(*layers))
    images = pictures(subject, 17, columns)
    step_sizes = (0.0, 0.001, 0.003, 0.010, 0.030)
    wanted = [slow_rate(subject, images, step_size, columns) for step_size in step_sizes]
    assert len(set(wanted)) > 2
    answers = [QUESTION.ask(Exam(subject, ImageSet(images, columns), batch_size=size)) for size in (3, 8)]
    rows = answers[0]["tables"]["steps"]
    assert [row["step size"] for row in rows] == list(step_sizes)
    assert [row["top-1 %"] for row in rows] == pytest.approx(wanted)
    assert [row["change in points"] for row in rows] == pytest.approx([rate - wanted[0] for rate in wanted])
    assert answers[0]["values"] == {"attack, mean top-1 %": pytest.approx(sum(wanted[1:]) / 4)}
    assert answers[1] == answers[0]


def test_the_model_is_given_back_as_it_was():
    model = tiny_vit(depth=1)
    model.pos_embed.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    subject = subject_of(model)
    with torch.no_grad():
        QUESTION.ask(Exam(subject, ImageSet(pictures(subject, 9))))
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training
    assert torch.is_grad_enabled()


def test_an_attack_that_breaks_off_gives_the_parameters_back(monkeypatch):
    subject = subject_of(tiny_vit(depth=1))
    seen = []

    def break_off(images, columns):
        seen.append(any(parameter.requires_grad for parameter in subject.model.parameters()))
        raise RuntimeError("stop")

    images = pictures(subject, 9)
    monkeypatch.setattr(subject, "logits", break_off)
    with pytest.raises(RuntimeError, match="stop"):
        QUESTION.ask(Exam(subject, ImageSet(images)))
    assert seen == [False]
    assert all(parameter.requires_grad for parameter in subject.model.parameters())


def test_five_hundred_images_unless_told_otherwise(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, NUM_CLASSES))
    subject = subject_of(model)
    images = ImageSet(pictures(subject, 600))
    assert "on 500 images" in QUESTION.ask(Exam(subject, images))["notes"]
    assert "on 20 images" in QUESTION.ask(Exam(subject, images, limit=20))["notes"]
