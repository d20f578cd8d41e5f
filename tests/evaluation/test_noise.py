import pytest
import torch
from scipy import stats
from torch import nn

from attnmix.evaluation.exam import Exam, ImageSet, image_generator
from attnmix.evaluation.noise import QUESTION, add_noise, noise_patterns
from attnmix.evaluation.subject import Subject
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.evaluation.exams import MEAN, STD, pictures


@pytest.fixture
def subject():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, NUM_CLASSES))
    return Subject("tiny", model, [], (3, 16, 24), MEAN, STD, fresh=tiny_vit)


def test_patterns_are_standard_normal_and_each_images_own():
    patterns = noise_patterns(torch.arange(6), (3, 32, 40), seed=2)
    assert patterns.shape == (6, 3, 32, 40)
    for pattern in patterns:
        assert stats.kstest(pattern.flatten().double().numpy(), "norm").pvalue > 1e-3
    correlation = torch.corrcoef(patterns.flatten(1)) - torch.eye(6)
    assert correlation.abs().max() < 0.08  # five deviations
    alone = noise_patterns(torch.tensor([4]), (3, 32, 40), seed=2)
    assert alone[0].equal(patterns[4])
    assert not noise_patterns(torch.tensor([4]), (3, 32, 40), seed=3).equal(alone)


def test_noise_is_scaled_and_not_clipped():
    pixels, pattern = torch.tensor([[0.0, 1.0, 0.5]]), torch.tensor([[-1.0, 2.0, 1.0]])
    assert add_noise(pixels, pattern, sigma=0.5).tolist() == [[-0.5, 2.0, 1.0]]


@torch.no_grad()
def slow_rate(subject, images, sigma, seed, columns):
    right = 0
    for number in range(len(images)):
        image, label = images[number]
        pattern = torch.randn(3, 16, 24, generator=image_generator(seed, number))
        noisy = torch.stack([image[c] + sigma * pattern[c] / STD[c] for c in range(3)])
        right += subject.logits(noisy[None], columns).argmax().item() == label
    return 100 * right / len(images)


@pytest.mark.parametrize("columns", [None, torch.tensor([3, 0, 1])])
def test_rates_equal_a_slow_loop_whatever_the_batch(subject, columns):
    images = pictures(subject, 23, columns)
    sigmas = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    wanted = [slow_rate(subject, images, sigma, 7, columns) for sigma in sigmas]
    assert len(set(wanted)) > 3
    answers = [QUESTION.ask(Exam(subject, ImageSet(images, columns), batch_size=size, seed=7)) for size in (3, 8)]
    rows = answers[0]["tables"]["levels"]
    assert [row["sigma"] for row in rows] == list(sigmas)
    assert [row["top-1 %"] for row in rows] == pytest.approx(wanted)
    assert [row["change in points"] for row in rows] == pytest.approx([rate - wanted[0] for rate in wanted])
    assert answers[0]["values"] == {"noise, mean top-1 %": pytest.approx(sum(wanted[1:]) / 5)}
    assert answers[1] == answers[0]


def test_the_images_are_looked_at_once_and_the_same_noise_is_scaled(subject, monkeypatch):
    images = pictures(subject, 23)
    seen = []
    logits = subject.logits
    monkeypatch.setattr(subject, "logits", lambda batch, columns: seen.append(batch) or logits(batch, columns))
    QUESTION.ask(Exam(subject, ImageSet(images)))
    assert len(seen) == 6
    assert seen[0].equal(images.tensors)
    steps = torch.stack(seen).diff(dim=0)
    assert torch.allclose(steps, steps[:1].expand_as(steps), atol=1e-5)
    noise = steps[0] * torch.tensor(STD)[:, None, None]
    assert noise.std().item() == pytest.approx(0.1, rel=0.02)
