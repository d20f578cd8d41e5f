"""Does the model still see both images in a mixed one (SMMix, Fig. 5a, after AutoMix)?"""

from typing import Any

import torch
from torch import Tensor

from attnmix.evaluation.exam import Answer, Exam, Question, no_attention
from attnmix.evaluation.pasting import pasting_method
from attnmix.methods import MixMethod, create_method
from attnmix.task import MixTask

# one for each way of the papers' to mix pixels: TransMix pastes CutMix's boxes, TokenMixup its base's
MIXERS = ("mixup", "cutmix", "smmix", "tl-align")
LOOKED_AT = 512
BATCH = 8  # SMMix draws one window size per batch


def right_of_two(logits: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """What the best and the two best predictions of mixed images hit (SMMix, Fig. 5a).

    Args:
        logits: `[B, K]`, K of 2 or more.
        source: `[B]`, the source's class.
        target: `[B]`, the target's, another one.

    Returns:
        `[B]` bool, whether the best prediction is one of the two classes; `[B]` bool, whether the two best are the
        two classes, in any order.
    """
    best = logits.topk(2, dim=1).indices
    hits = (best == source[:, None]) | (best == target[:, None])
    return hits[:, 0], hits.all(dim=1)


def mixing_method(name: str, *, num_classes: int, seed: int) -> MixMethod:
    """A method that mixes at every step and each image in its own way, by pasting where it can."""
    return pasting_method(name, num_classes=num_classes, seed=seed) or create_method(
        name, num_classes=num_classes, seed=seed, prob=1.0, mode="elem", pairing="roll"
    )


@torch.no_grad()
def _ask(exam: Exam) -> Answer:
    picked = exam.first_images(LOOKED_AT)
    # folders are sorted by class, and partners lie side by side
    order = torch.randperm(len(picked.labels), generator=torch.Generator().manual_seed(exam.seed))
    order = order.to(picked.images.device)
    rows, notes = [], []
    for name in MIXERS:
        method = mixing_method(name, num_classes=_num_outputs(exam), seed=exam.seed)
        try:
            task = MixTask(exam.subject.model, method)
        except ValueError as error:
            notes.append(f"{name} is left out: {error}")
            continue
        rows.append({"method": name, **_rates(exam, task, picked.images[order], picked.labels[order])})
    notes.insert(
        0,
        f"{len(order)} evaluation images, each with another one pasted on or blended in; pairs of one class are "
        "left out. top-1: the best prediction is one of the two classes; top-2: the two best are the two. Images, "
        "pairs and random boxes are the same for every model of one image and patch size; SMMix chooses windows "
        "by the model's own attention",
    )
    return {
        "values": {f"top-2 % on {row['method']} images": row["top-2 %"] for row in rows},
        "tables": {"methods": rows},
        "notes": notes,
    }


def _rates(exam: Exam, task: MixTask, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """How many mixed images of two classes there were, and how often they were right, in percent."""
    counts = torch.zeros(3, dtype=torch.int64, device=images.device)
    exam.progress.begin(len(images), "mixed images")
    for some, classes in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        with task.view.evaluating():
            mixed = task.mix(some, exam.data.model_labels(classes))
            logits = exam.subject.logits(mixed.images, exam.data.columns)
        source = classes[mixed.source_index]
        two = source != classes
        first, both = right_of_two(logits, source, classes)
        counts += torch.stack([two.sum(), (first & two).sum(), (both & two).sum()])
        exam.progress.advance(len(some), len(some))
    count, first, both = counts.tolist()
    rates = {
        name: 100 * right / count if count else None for name, right in (("top-1 %", first), ("top-2 %", both))
    }
    return {"images": count, **rates}


def _num_outputs(exam: Exam) -> int:
    view = exam.subject.view
    assert view is not None
    return view.num_classes


def _missing(exam: Exam) -> str | None:
    classes = exam.data.images.num_classes
    if classes < 3:
        return f"the two best predictions of {classes} classes are always the same: it needs 3 classes or more"
    return no_attention(exam)


QUESTION = Question(
    name="mixed",
    about="accuracy on mixed images, by mixing method (SMMix Fig. 5a)",
    ask=_ask,
    missing=_missing,
)
