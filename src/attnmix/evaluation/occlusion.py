"""How often a model is still right when part of the image is black (TransMix Fig. 3, after Naseer et al. 2021)."""

from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from attnmix.evaluation.exam import Answer, Batch, Exam, Question
from attnmix.evaluation.patches import drop_patches, first_patches, patch_order, piece_size, random_orders
from attnmix.evaluation.subject import Subject

WAYS = ("random", "salient", "non-salient")
PERCENTAGES = tuple(range(10, 100, 10))


def saliency_on_grid(subject: Subject, salient: Subject, images: Tensor) -> Tensor:
    """What one model finds salient in the images of another (or its own), on the other's patches.

    Args:
        subject: whose images and patches these are.
        salient: whose attention is read; the images are brought to its size and its normalisation.
        images: `[B, C, H, W]`, as `subject` takes them.

    Returns:
        `[B, N]` float32, its map interpolated (averaged where its grid is finer).
    """
    if salient is not subject:
        pixels = _resized(subject.to_pixels(images), salient.image_size)
        images = salient.normalise(pixels.to(salient.device))
    maps = salient.saliency(images).unflatten(1, salient.grid)
    return _resized(maps[:, None], subject.patch_grid).flatten(1).to(subject.device)


@torch.no_grad()
def _ask(exam: Exam) -> Answer:
    subject, grid = exam.subject, exam.subject.patch_grid
    salient, note = _salient_model(exam)
    ways = WAYS if salient is not None else WAYS[:1]
    counts = [round(percentage * grid[0] * grid[1] / 100) for percentage in PERCENTAGES]
    whole = torch.zeros((), dtype=torch.int64, device=subject.device)
    correct = torch.zeros(len(ways), len(counts), dtype=torch.int64, device=subject.device)
    seen = 0
    for batch in exam.batches(exam.data.images, what="occlusion"):
        seen += len(batch.labels)
        whole += _right(exam, batch, batch.images)
        pixels = subject.to_pixels(batch.images)
        for way, order in enumerate(_orders(exam, batch, salient)):
            for level, count in enumerate(counts):
                occluded = drop_patches(pixels, first_patches(order, count), grid=grid)
                correct[way, level] += _right(exam, batch, subject.normalise(occluded))
    undisturbed = 100 * whole.item() / seen
    curves = dict(zip(ways, (100 * correct.double() / seen).tolist(), strict=True))
    return {
        "values": {f"{way} drop, mean top-1 %": fmean(curves[way]) if way in curves else None for way in WAYS},
        "tables": {
            "drops": [
                {"patches": way, "dropped %": percentage, "top-1 %": top1}
                for way in ways
                for percentage, top1 in zip((0, *PERCENTAGES), (undisturbed, *curves[way]), strict=True)
            ]
        },
        "notes": [
            f"grid of {grid[0]}x{grid[1]} patches; dropped patches are black (pixel value 0, before "
            "normalisation), the nearest whole number of them in each image",
            "each image its own random order, one for all percentages; means over 10 % to 90 %",
            note,
        ],
    }


def _orders(exam: Exam, batch: Batch, salient: Subject | None) -> list[Tensor]:
    """In which order the patches of each image go, in the order of `WAYS`: `[B, N]` each."""
    rows, columns = exam.subject.patch_grid
    shuffled = random_orders(batch.index, rows * columns, seed=exam.seed).to(batch.images.device)
    if salient is None:
        return [shuffled]
    order = patch_order(saliency_on_grid(exam.subject, salient, batch.images))
    return [shuffled, order, order.flip(1)]


def _right(exam: Exam, batch: Batch, images: Tensor) -> Tensor:
    """How many are classified as labelled, on the device."""
    return (exam.subject.logits(images, exam.data.columns).argmax(dim=1) == batch.labels).sum()


def _salient_model(exam: Exam) -> tuple[Subject | None, str]:
    """Whose attention says what is salient (None: nobody's can), and what to tell the reader."""
    salient = exam.saliency or exam.subject
    reason = salient.no_view
    if salient.view is not None:
        try:
            salient.view.check_guide((-1,), "class" if salient.view.has_class_row else "image")
        except ValueError as error:
            reason = str(error)
    if reason:
        return None, (
            f"only random patches: the attention of {salient.label} cannot be read ({reason}); name a model "
            "whose attention says what is salient"
        )
    whose = "the model itself" if salient is exam.subject else salient.label
    return salient, (
        f"salient is what the last attention of {whose} looks at in the whole image; dropped is a share of the "
        "patches (the code of Naseer et al. drops those that hold a share of one DINO head's attention)"
    )


def _resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """`[B, C, H, W]` at another size, averaged where that is smaller."""
    if maps.shape[2:] == size:
        return maps
    return F.interpolate(maps, size=size, mode="bilinear", antialias=True)


def _missing(exam: Exam) -> str | None:
    try:
        piece_size(exam.subject.image_size, exam.subject.patch_grid)
    except ValueError as error:
        return str(error)
    return None


QUESTION = Question(
    name="occlusion",
    about="accuracy with random, salient or other patches dropped (TransMix Fig. 3)",
    ask=_ask,
    missing=_missing,
    uses=("saliency",),
)
