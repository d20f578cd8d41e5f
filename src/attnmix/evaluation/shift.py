"""What is left of a model's accuracy on other images of its classes: paintings, sketches, adversarial photos.

ImageNet-A, -R, -Sketch and stylised ImageNet are such sets (TransMix Table 4, SMMix Table 5).
"""

from typing import Any

from attnmix.evaluation.exam import Answer, Exam, Question
from attnmix.evaluation.scores import restriction, score_images, unread


def ask_shift(exam: Exam) -> Answer:
    """Accuracy and calibration on each of the exam's shifted sets, among that set's classes alone."""
    rows: list[dict[str, Any]] = []
    notes = []
    for name, image_set in exam.shifted.items():
        scores = score_images(exam, image_set, what=name)
        classes = image_set.images.num_classes
        rows.append({"set": name, "images": scores.images, "classes": classes, **scores.summary()})
        notes += [*restriction(exam, image_set, name), *unread(image_set.images, name)]
    return {
        "values": {f"{row['set']} top-1 %": row["top-1 %"] for row in rows},
        "tables": {"sets": rows},
        "notes": notes,
    }


def _missing(exam: Exam) -> str | None:
    return None if exam.shifted else "give folders of other images of the model's classes: --shifted NAME=FOLDER"


QUESTION = Question(
    name="shift",
    about="accuracy on other images of the classes, ImageNet-A, -R, -Sketch (TransMix Table 4, SMMix Table 5)",
    ask=ask_shift,
    missing=_missing,
    uses=("shifted",),
)
