"""Does attention cover the object? Its mask against ground truth (TransMix Table 5, PASCAL VOC 2012)."""

import torch
from torch import Tensor

from attnmix.data import LabelledImages
from attnmix.evaluation.exam import Answer, Exam, Question, Truth, no_attention
from attnmix.evaluation.score_maps import ATTENTION, about_attention, score_maps, threshold_mass, to_image_size
from attnmix.evaluation.scores import unread

LIMIT = 1000
MASS = 0.9


def jaccard(found: Tensor, truth: Tensor) -> Tensor:
    """Jaccard similarity |found and object| / |found or object|, in the pixels that count.

    Args:
        found: `[B, H, W]` bool.
        truth: `[B, H, W]` int8: 1 object, 0 ground, -1 not counted.

    Returns:
        `[B]` float64 in [0, 1]; NaN where both are empty.
    """
    found, truth = (found & (truth >= 0)).flatten(1), (truth == 1).flatten(1)
    return (found & truth).sum(dim=1).double() / (found | truth).sum(dim=1)


def _ask(exam: Exam) -> Answer:
    images, truth = _scenes(exam)
    assert truth is not None
    maps = score_maps(exam.subject)
    sums = dict.fromkeys(maps, 0.0)
    count = left_out = 0
    for batch in exam.batches(images, limit=LIMIT, what="segmentation"):
        masks = truth.masks(batch.index)
        assert masks is not None
        known = (masks == 1).flatten(1).any(dim=1)
        count += int(known.sum())
        left_out += int((~known).sum())
        if not known.any():
            continue
        masks, pictures = masks[known].to(batch.images.device), batch.images[known.to(batch.images.device)]
        for name, read in maps.items():
            kept = to_image_size(threshold_mass(read(pictures), MASS), (masks.shape[1], masks.shape[2]))
            sums[name] += float(jaccard(kept, masks).sum())
    if count == 0:
        raise ValueError(f"none of the {left_out} images looked at has an object pixel in view")
    percent = {name: 100 * total / count for name, total in sums.items()}
    rows = [{"map": name, "Jaccard %": share, "images": count} for name, share in percent.items()]
    notes = [
        about_attention(exam.subject),
        f"Jaccard: the pixels of the tokens that hold {MASS} of the map against the pixels of all objects, mean "
        "over images; pixels marked as void are not counted",
    ]
    if images is not exam.data.images:
        notes += unread(images, "the scenes")
    if left_out:
        notes.append(f"left out {left_out} images without an object pixel in view")
    return Answer(values={"Jaccard %": percent[ATTENTION]}, tables={"scores": rows}, notes=notes)


def _scenes(exam: Exam) -> tuple[LabelledImages, Truth | None]:
    return exam.scenes or (exam.data.images, exam.truth)


def _missing(exam: Exam) -> str | None:
    if reason := no_attention(exam):
        return reason
    _, truth = _scenes(exam)
    if truth is None or truth.masks(torch.tensor([0])) is None:
        return (
            "give masks: --voc FOLDER (of PASCAL VOC 2012: JPEGImages, SegmentationClass, ImageSets), or "
            "--annotations with a COCO JSON file that has segmentations; the embedded scenes know their own"
        )
    return None


QUESTION = Question(
    name="segmentation",
    about="does attention cover the object: Jaccard similarity with its mask (TransMix Table 5)",
    ask=_ask,
    missing=_missing,
    uses=("truth", "scenes"),
)
