"""How often a model is still right under attack (TokenMixup, supplement J, Table 9; PGD of Madry et al. 2018)."""

from collections.abc import Callable
from statistics import fmean

import torch
from torch import Tensor

from attnmix.evaluation.exam import Answer, Exam, Question
from attnmix.evaluation.input_gradient import frozen, input_gradient

STEP_SIZES = (0.001, 0.003, 0.010, 0.030)  # Table 9's
STEPS, RADIUS = 10, 8 / 255  # the paper has neither
LIMIT = 500


def pgd(
    logits_of_pixels: Callable[[Tensor], Tensor],
    pixels: Tensor,
    labels: Tensor,
    *,
    step_size: float,
    steps: int,
    radius: float,
) -> Tensor:
    """Projected gradient descent in the L-infinity ball, from the image itself (Madry et al. 2018, section 2.1).

    x <- clip(x + step_size * sign(d cross-entropy / dx)), clipped to the ball around the image and to [0, 1].
    No gradient is left on anything, also inside `torch.no_grad`.

    Args:
        logits_of_pixels: differentiable, each image on its own: `[B, C, H, W]` -> `[B, K]`.
        pixels: `[B, C, H, W]`, 0 black to 1 white.
        labels: `[B]`, what the logits are pushed away from.
        step_size: in pixel values.
        steps: how many.
        radius: of the ball, in pixel values.

    Returns:
        `[B, C, H, W]`, the attacked images.
    """
    attacked = pixels.detach()
    lowest, highest = (attacked - radius).clamp(0, 1), (attacked + radius).clamp(0, 1)
    for _ in range(steps):
        gradient = input_gradient(logits_of_pixels, attacked, labels)
        attacked = (attacked + step_size * gradient.sign()).clamp(lowest, highest)
    return attacked


@torch.no_grad()
def _ask(exam: Exam) -> Answer:
    subject, columns = exam.subject, exam.data.columns
    correct = torch.zeros(1 + len(STEP_SIZES), dtype=torch.int64, device=subject.device)
    seen = 0

    def logits_of_pixels(pixels: Tensor) -> Tensor:
        return subject.logits(subject.normalise(pixels), columns)

    with frozen(subject.model):
        for batch in exam.batches(exam.data.images, limit=LIMIT, what="attack"):
            seen += len(batch.labels)
            pixels = subject.to_pixels(batch.images)
            correct[0] += (subject.logits(batch.images, columns).argmax(dim=1) == batch.labels).sum()
            for level, step_size in enumerate(STEP_SIZES, start=1):
                attacked = pgd(
                    logits_of_pixels, pixels, batch.labels, step_size=step_size, steps=STEPS, radius=RADIUS
                )
                correct[level] += (logits_of_pixels(attacked).argmax(dim=1) == batch.labels).sum()
    rates = (100 * correct.double() / seen).tolist()
    return {
        "values": {"attack, mean top-1 %": fmean(rates[1:])},
        "tables": {
            "steps": [
                {"step size": step_size, "top-1 %": top1, "change in points": top1 - rates[0]}
                for step_size, top1 in zip((0.0, *STEP_SIZES), rates, strict=True)
            ]
        },
        "notes": [
            f"PGD on the cross-entropy: {STEPS} steps within 8/255 of each pixel value (L-infinity) and within "
            "0 to 1, from the image itself, no random start; the paper states neither steps nor radius, so that "
            "its Table 9 is not to be compared number by number",
            f"{STEPS} steps of 0.001 come to 0.01, less than the radius; step size 0 is the image itself, the "
            "mean is over the others",
            f"on {seen} images",
            "gradients are the model's own, over the classes of this set; right answers here are no proof that "
            "another attack would fail",
        ],
    }


QUESTION = Question(
    name="attack",
    about="accuracy under PGD attack (TokenMixup, supplement J, Table 9)",
    ask=_ask,
)
