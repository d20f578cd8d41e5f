"""How sharp are the maps of what matters: attention against gradient (TokenMixup, supplement E, Table 2)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.attention.quantities import renormalise
from attnmix.evaluation.exam import Answer, Exam, Question, no_attention
from attnmix.evaluation.input_gradient import input_gradient
from attnmix.evaluation.subject import Subject

LIMIT = 500
MEASURES = ("TV-L1", "TV-L2", "variance")


def sharpness(maps: Tensor) -> Tensor:
    """Total variation by both norms, and variance, of maps `[B, gh, gw]` as they are: `[B, 3]`.

    `TV_L1 = sum |S[i+1, j] - S[i, j]| + |S[i, j+1] - S[i, j]|` and
    `TV_L2 = sum sqrt(|S[i+1, j] - S[i, j]|^2 + |S[i, j+1] - S[i, j]|^2)`,
    differences beyond the last row and column being 0; variance is the mean squared deviation.
    """
    down = F.pad(maps.diff(dim=1), (0, 0, 0, 1))
    across = F.pad(maps.diff(dim=2), (0, 1))
    one = (down.abs() + across.abs()).sum(dim=(1, 2))
    two = torch.hypot(down, across).sum(dim=(1, 2))
    return torch.stack((one, two, maps.flatten(1).var(dim=1, correction=0)), dim=1)


def gradient_map(subject: Subject, images: Tensor, labels: Tensor, columns: Tensor | None = None) -> Tensor:
    """How much each final token's pixels move the loss, `[B, N]`; nothing is left on the model's parameters.

    The absolute gradient of the true class's cross-entropy with respect to the input, summed over channels and
    over the token's pixels.

    Args:
        subject: the model.
        images: `[B, C, H, W]`, normalised.
        labels: `[B]` int64, positions in `columns`.
        columns: `[K]`, outputs that are classes; None: all.
    """
    gradient = input_gradient(lambda pixels: subject.logits(pixels, columns), images, labels)
    rows, columns_of_grid = subject.grid
    patch = images.shape[-2] // rows, images.shape[-1] // columns_of_grid
    return F.avg_pool2d(gradient.float().abs().sum(dim=1), patch, divisor_override=1).flatten(1)


def _ask(exam: Exam) -> Answer:
    subject = exam.subject
    attention, gradient = _Mean(), _Mean()
    for batch in exam.batches(exam.data.images, limit=LIMIT):
        attention.add(subject.saliency(batch.images), subject.grid)
        found = gradient_map(subject, batch.images, batch.labels, exam.data.columns)
        gradient.add(found, subject.grid)
    rows: list[dict[str, Any]] = [
        {"map": name, **mean.as_dict()} for name, mean in (("attention", attention), ("gradient", gradient))
    ]
    notes = [
        f"maps on the {subject.grid[0]}x{subject.grid[1]} grid of final tokens, each of sum 1: comparable between "
        "models of the same grid alone",
        "attention: what the model's last attention looks at; gradient: of the true class's cross-entropy with "
        "respect to the input, absolute, summed over a token's pixels",
    ]
    for name, mean in (("attention", attention), ("gradient", gradient)):
        if mean.left_out:
            notes.append(f"{mean.left_out} images left out of the {name} maps: theirs is 0 or not finite")
    return Answer(values={f"{row['map']} TV-L1": row["TV-L1"] for row in rows}, tables={"maps": rows}, notes=notes)


class _Mean:
    """Mean sharpness over the images whose map says anything."""

    def __init__(self) -> None:
        self.total = torch.zeros(len(MEASURES), dtype=torch.float64)
        self.seen = 0
        self.left_out = 0

    def add(self, maps: Tensor, grid: tuple[int, int]) -> None:
        """Measure maps `[B, N]` on `grid`."""
        mass = maps.sum(dim=1)
        usable = mass.isfinite() & (mass > 0)
        self.left_out += int((~usable).sum())
        if not usable.any():
            return
        found = sharpness(renormalise(maps[usable]).unflatten(1, grid))
        self.total += found.cpu().double().sum(dim=0)
        self.seen += len(found)

    def as_dict(self) -> dict[str, float | None]:
        """By name; None where there was nothing to measure."""
        mean = (self.total / self.seen).tolist() if self.seen else [None] * len(MEASURES)
        return dict(zip(MEASURES, mean, strict=True))


def _missing(exam: Exam) -> str | None:
    return no_attention(exam)


QUESTION = Question(
    name="sharpness",
    about="total variation and variance of attention and gradient maps (TokenMixup, supplement E)",
    ask=_ask,
    missing=_missing,
)
