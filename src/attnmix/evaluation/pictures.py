"""What a model looks at, to look at (SMMix Fig. 5b, c, A1, A2; TransMix Fig. 5), and mixed images with labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnmix.evaluation.activation_maps import activation_maps
from attnmix.evaluation.exam import Answer, Exam, Question, no_attention
from attnmix.evaluation.mixed_pictures import MixedPicture, mixed_pictures
from attnmix.evaluation.pasting import options_of_pasting, pasting_method, spelled_out, with_what_it_learnt
from attnmix.evaluation.subject import Subject
from attnmix.mixing import fold_tokens

COUNT = 6


@torch.no_grad()
def _ask(exam: Exam) -> Answer:
    subject = exam.subject
    picked = exam.first_images(COUNT)
    names = [str(exam.data.images.class_names[label]) for label in picked.labels.tolist()]
    labels = exam.data.model_labels(picked.labels)
    boxed = pasting_method("cutmix", num_classes=_view(subject).num_classes, seed=exam.seed)
    assert boxed is not None
    mixed = boxed.mix(_view(subject), picked.images, labels)
    assert mixed.source_mask is not None

    unmixed_best, confidence = _predictions(exam, picked.images)
    mixed_best, _ = _predictions(exam, mixed.images)
    arrays = {
        "images": _bytes(subject, picked.images),
        "attention": _attention(subject, picked.images),
        "mixed_images": _bytes(subject, mixed.images),
        "mixed_attention": _attention(subject, mixed.images),
        "mixed_pasted": mixed.source_mask.cpu().numpy(),
    }
    notes = [
        f"{len(names)} images taken evenly from the data, and each with a box of another one pasted on (CutMix's "
        "boxes, the same for every model); attention is the last block's",
    ]
    try:
        arrays |= {
            "activation": _activation(subject, picked.images, labels),
            "mixed_activation_source": _activation(subject, mixed.images, labels[mixed.source_index]),
            "mixed_activation_target": _activation(subject, mixed.images, labels),
        }
        notes.append("activation maps: Grad-CAM of the image's class, or of one of the two classes")
    except ValueError as error:
        notes.append(f"no activation maps: {error}")

    masks = exam.truth.masks(picked.index[::2]) if exam.truth is not None else None
    rows, left_out = _gallery(
        subject,
        picked.images[::2],
        labels[::2],
        classes=names[::2],
        masks=None if masks is None else (masks == 1).to(picked.images.device),
        seed=exam.seed,
    )
    numbers = picked.index.tolist()
    return {
        "values": {},
        "tables": {
            "unmixed": [
                {"image": number, "label": label, "predicted": best[0], "confidence %": sure}
                for number, label, best, sure in zip(numbers, names, unmixed_best, confidence, strict=True)
            ],
            "mixed": [
                {
                    "image": number,
                    "source label": names[source],
                    "target label": label,
                    "first": best[0],
                    "second": best[1] if len(best) > 1 else None,
                }
                for number, source, label, best in zip(
                    numbers, mixed.source_index.tolist(), names, mixed_best, strict=True
                )
            ],
            "gallery": [_gallery_record(row) for row in rows],
        },
        "notes": [*notes, *left_out],
        "arrays": {**arrays, **_gallery_arrays(rows)},
    }


def _gallery(
    subject: Subject, images: Tensor, labels: Tensor, *, classes: Sequence[str], masks: Tensor | None, seed: int
) -> tuple[list[MixedPicture], list[str]]:
    """Mixed under the method that the subject was trained with if it pastes, else TransMix, else CutMix."""
    tried: list[tuple[str, dict[str, Any]]] = [("transmix", {}), ("cutmix", {})]
    if subject.method:
        tried.insert(0, (subject.method, options_of_pasting(subject.method, subject.method_options)))
    notes: list[str] = []
    for method_name, options in tried:
        name = spelled_out(method_name, options)
        method = pasting_method(method_name, num_classes=_view(subject).num_classes, seed=seed, **options)
        if method is None:
            continue
        try:
            if method_name == subject.method:
                method = with_what_it_learnt(method, subject.model, subject.method_learnt)
            rows = mixed_pictures(
                subject.model,
                method,
                images,
                labels,
                name=name,
                classes=classes,
                masks=masks,
                mean=subject.mean,
                std=subject.std,
            )
        except ValueError as error:
            notes.append(f"no gallery by {name}: {error}")
        else:
            return rows, notes
    return [], notes


def _gallery_arrays(rows: Sequence[MixedPicture]) -> dict[str, np.ndarray]:
    if not rows:
        return {}
    return {
        "gallery_source": np.stack([_to_bytes(row.source) for row in rows]),
        "gallery_target": np.stack([_to_bytes(row.target) for row in rows]),
        "gallery_mixed": np.stack([_to_bytes(row.mixed) for row in rows]),
        "gallery_attention": np.stack([row.attention for row in rows]).astype(np.float16),
        "gallery_pasted": np.stack([_pasted(row) for row in rows]),
    }


def _pasted(row: MixedPicture) -> np.ndarray:
    """`[H, W]` bool; all False where there is nothing to outline."""
    return np.zeros(row.mixed.shape[:2], dtype=bool) if row.pasted is None else row.pasted


def _gallery_record(row: MixedPicture) -> dict[str, Any]:
    weights = {name: row.weights.get(name) for name in ("label", "area", "attention", "visible")}
    return {"method": row.method, "source label": row.source_label, "target label": row.target_label, **weights}


def _predictions(exam: Exam, images: Tensor) -> tuple[list[list[str]], list[float]]:
    """Names of the two best classes (or the only one), and the best one's probability in percent."""
    probability = exam.subject.logits(images, exam.data.columns).softmax(dim=1)
    best = probability.topk(min(2, probability.shape[1]), dim=1)
    names = [[str(exam.data.images.class_names[number]) for number in row] for row in best.indices.tolist()]
    return names, (100 * best.values[:, 0]).tolist()


def _attention(subject: Subject, images: Tensor) -> np.ndarray:
    grid = _view(subject).grid_size(images.shape[-2:])
    return fold_tokens(subject.saliency(images), grid).half().cpu().numpy()


def _activation(subject: Subject, images: Tensor, classes: Tensor) -> np.ndarray:
    return activation_maps(subject, images, classes).half().cpu().numpy()


def _bytes(subject: Subject, images: Tensor) -> np.ndarray:
    """Normalised images as uint8 `[B, H, W, C]`."""
    return _to_bytes(subject.to_pixels(images).permute(0, 2, 3, 1).cpu().numpy())


def _to_bytes(pixels: np.ndarray) -> np.ndarray:
    return (255 * pixels.clip(0, 1)).round().astype(np.uint8)


def _view(subject: Subject) -> Any:
    assert subject.view is not None
    return subject.view


QUESTION = Question(
    name="pictures",
    about="attention and activation maps, mixed images with labels (SMMix Fig. 5b, 5c; TransMix Fig. 5)",
    ask=_ask,
    missing=no_attention,
    uses=("truth", "method"),
)
