"""How often a model is still right under Gaussian noise (TokenMixup, supplement J, Table 8)."""

from statistics import fmean

import torch
from torch import Tensor

from attnmix.evaluation.exam import Answer, Exam, Question, image_generator

SIGMAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def noise_patterns(index: Tensor, shape: tuple[int, int, int], *, seed: int) -> Tensor:
    """Standard normal noise for each image, drawn for it alone: `[B, C, H, W]` float32 on the CPU.

    Args:
        index: `[B]`, the images' numbers in their set.
        shape: channels, height and width.
        seed: the exam's.
    """
    patterns = torch.empty(len(index), *shape)
    for pattern, number in zip(patterns, index.tolist(), strict=True):
        pattern.normal_(generator=image_generator(seed, number))
    return patterns


def add_noise(pixels: Tensor, pattern: Tensor, *, sigma: float) -> Tensor:
    """X' = X + eps, eps ~ N(0, sigma^2) (TokenMixup, supplement J); not clipped, as the equation has it.

    Args:
        pixels: `[B, C, H, W]`, 0 black to 1 white.
        pattern: `[B, C, H, W]`, standard normal.
        sigma: standard deviation in pixel values.
    """
    return pixels + sigma * pattern


@torch.no_grad()
def _ask(exam: Exam) -> Answer:
    subject = exam.subject
    correct = torch.zeros(len(SIGMAS), dtype=torch.int64, device=subject.device)
    seen = 0
    for batch in exam.batches(exam.data.images, what="noise"):
        seen += len(batch.labels)
        channels, height, width = batch.images.shape[1:]
        pattern = noise_patterns(batch.index, (channels, height, width), seed=exam.seed).to(batch.images.device)
        pixels = subject.to_pixels(batch.images)
        for level, sigma in enumerate(SIGMAS):
            # without noise the images themselves, not what rounding there and back leaves of them
            images = subject.normalise(add_noise(pixels, pattern, sigma=sigma)) if sigma else batch.images
            correct[level] += (subject.logits(images, exam.data.columns).argmax(dim=1) == batch.labels).sum()
    rates = (100 * correct.double() / seen).tolist()
    return {
        "values": {"noise, mean top-1 %": fmean(rates[1:])},
        "tables": {
            "levels": [
                {"sigma": sigma, "top-1 %": top1, "change in points": top1 - rates[0]}
                for sigma, top1 in zip(SIGMAS, rates, strict=True)
            ]
        },
        "notes": [
            "sigma in pixel values, 0 black to 1 white; the noise is added before normalisation and not clipped",
            "each image its own pattern, scaled by each sigma; the mean is over sigma above 0",
        ],
    }


QUESTION = Question(
    name="noise",
    about="accuracy under Gaussian noise (TokenMixup, supplement J, Table 8)",
    ask=_ask,
)
