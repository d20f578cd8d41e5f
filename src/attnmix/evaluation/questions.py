"""Every question, in the order in which they are asked: a new one is a file and a line here."""

from attnmix.evaluation import (
    accuracy,
    attack,
    fluctuation,
    label_content,
    localisation,
    mixed_accuracy,
    noise,
    occlusion,
    outliers,
    pictures,
    region_attention,
    segmentation,
    sharpness,
    shift,
    shuffle,
)
from attnmix.evaluation.exam import Question

_FILES = (
    accuracy,
    shift,
    outliers,
    occlusion,
    shuffle,
    noise,
    attack,
    localisation,
    segmentation,
    region_attention,
    sharpness,
    fluctuation,
    mixed_accuracy,
    label_content,
    pictures,
)

QUESTIONS: dict[str, Question] = {file.QUESTION.name: file.QUESTION for file in _FILES}
