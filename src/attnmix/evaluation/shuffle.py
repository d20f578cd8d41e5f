"""How often a model is still right when the image's pieces have changed places (TransMix Fig. 4)."""

from math import gcd
from statistics import fmean

import torch

from attnmix.evaluation.exam import Answer, Exam, Question
from attnmix.evaluation.patches import random_orders, shuffle_patches
from attnmix.evaluation.subject import Subject


def pieces_per_side(image_size: tuple[int, int], grid: tuple[int, int]) -> list[int]:
    """Into how many pieces both sides can be cut, 1 (the whole image) first.

    Args:
        image_size: height and width in pixels.
        grid: of patches; more pieces than its longer side would cut every patch.
    """
    common = gcd(*image_size)
    return [pieces for pieces in range(1, max(grid) + 1) if common % pieces == 0]


@torch.no_grad()
def _ask(exam: Exam) -> Answer:
    subject, grid = exam.subject, exam.subject.patch_grid
    sides = _sides(subject)
    correct = torch.zeros(len(sides), dtype=torch.int64, device=subject.device)
    seen = 0
    for batch in exam.batches(exam.data.images, what="shuffle"):
        seen += len(batch.labels)
        for level, pieces in enumerate(sides):
            images = batch.images
            if pieces > 1:
                permutation = random_orders(batch.index, pieces**2, seed=exam.seed).to(images.device)
                images = shuffle_patches(images, permutation, pieces=pieces)
            correct[level] += (subject.logits(images, exam.data.columns).argmax(dim=1) == batch.labels).sum()
    rates = (100 * correct.double() / seen).tolist()
    return {
        "values": {"shuffle, mean top-1 %": fmean(rates[1:])},
        "tables": {
            "grids": [
                {"pieces per side": pieces, "pieces": pieces**2, "top-1 %": top1}
                for pieces, top1 in zip(sides, rates, strict=True)
            ]
        },
        "notes": [
            f"pieces per side: {', '.join(map(str, sides))}, the common divisors of the images' sides up to the "
            f"longer side of the grid of patches ({grid[0]}x{grid[1]}); 1 is the whole image",
            "each image its own permutation for each number of pieces, drawn from all of them: a piece may stay "
            "where it is; the mean leaves the whole image out",
        ],
    }


def _sides(subject: Subject) -> list[int]:
    return pieces_per_side(subject.image_size, subject.patch_grid)


def _missing(exam: Exam) -> str | None:
    try:
        if len(_sides(exam.subject)) > 1:
            return None
    except ValueError as error:  # the model does not take images of this size
        return str(error)
    (height, width), (rows, columns) = exam.subject.image_size, exam.subject.patch_grid
    return (
        f"images of {height}x{width} pixels cannot be cut into equal pieces no smaller than the patches of a "
        f"{rows}x{columns} grid: their sides need a common divisor of 2 or more"
    )


QUESTION = Question(
    name="shuffle",
    about="accuracy with the image's pieces in random places (TransMix Fig. 4)",
    ask=_ask,
    missing=_missing,
)
