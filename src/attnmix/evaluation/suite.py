"""Ask many questions of many models, each only once."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnmix._errors import plain_message
from attnmix.evaluation.exam import Answer, Exam, Progress, Question
from attnmix.evaluation.store import AnswerStore
from attnmix.evaluation.subject import Subject


@dataclass
class Outcome:
    """What a round of questions came to.

    Attributes:
        answers: by question, then by model.
        left_out: the same, with the reason why a question was not asked.
        failed: the same, with what went wrong on the way.
    """

    answers: dict[str, dict[str, Answer]] = field(default_factory=dict)
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)


def ask_all(
    exams: Sequence[Exam],
    questions: Mapping[str, Question],
    store: AnswerStore,
    settings: Callable[[Exam, Question], dict[str, Any]],
    *,
    outcome: Outcome,
    begin: Callable[[str, str, bool], None] = lambda question, label, known: None,
) -> None:
    """Put into `outcome` every question's answer by every model: the kept one, else a new one, kept at once.

    Args:
        exams: one for each model.
        questions: by name.
        store: where answers are kept.
        settings: what an answer depends on, as JSON takes it.
        outcome: filled question by question: what is there when an error ends the round is whole.
        begin: hears question, model and whether the answer is kept already.

    Raises:
        ValueError: kept answers of other settings (before anything is asked); a batch that does not fit into
            memory.
        OSError: an answer cannot be written.
    """
    kept = {
        (name, exam.subject.label): store.load(exam.subject.label, name, settings(exam, question))
        for name, question in questions.items()
        for exam in exams
    }
    for name, question in questions.items():
        for exam in exams:
            label = exam.subject.label
            answer = kept[name, label]
            if answer is None:
                try:
                    reason = question.missing(exam)
                    if reason is not None:
                        outcome.left_out.setdefault(name, {})[label] = reason
                        continue
                    begin(name, label, False)
                    answer = _ask(question, exam)
                except torch.OutOfMemoryError as error:
                    raise ValueError(
                        f"batch_size {exam.batch_size} does not fit into the memory of {exam.subject.device}: "
                        "lower it"
                    ) from error
                except (ValueError, OSError) as error:  # OSError: too many unreadable images
                    outcome.failed.setdefault(name, {})[label] = plain_message(error)
                    continue
                store.save(label, name, settings(exam, question), answer)
            else:
                begin(name, label, True)
            outcome.answers.setdefault(name, {})[label] = answer


def add_kept(
    exams: Sequence[Exam],
    questions: Mapping[str, Question],
    store: AnswerStore,
    settings: Callable[[Exam, Question], dict[str, Any]],
    *,
    outcome: Outcome,
) -> None:
    """Put the answers to other questions into `outcome`, which earlier rounds kept with the same settings."""
    for name, question in questions.items():
        for exam in exams:
            label = exam.subject.label
            try:
                answer = store.load(label, name, settings(exam, question))
            except ValueError:  # another evaluation's
                continue
            if answer is not None:
                outcome.answers.setdefault(name, {}).setdefault(label, answer)


def _ask(question: Question, exam: Exam) -> Answer:
    """The answer, with how many images and seconds it took."""
    count = _Count(exam.progress)
    started = time.perf_counter()
    exam.subject.take_unsound()  # of a question that failed before
    answer = question.ask(replace(exam, progress=count))
    _check_finite(answer, exam.subject)
    return {
        **answer,
        "images": count.first,
        "skipped": exam.data.images.unreadable,
        "seconds": time.perf_counter() - started,
    }


def _check_finite(answer: Answer, subject: Subject) -> None:
    """Raise ValueError for logits or a number that are NaN or infinite."""
    unsound = subject.take_unsound()
    if unsound:
        raise ValueError(f"the logits of {unsound} images, disturbed or not, are not finite: so is no answer")
    records = [answer.get("values", {}), *(row for rows in answer.get("tables", {}).values() for row in rows)]
    for record in records:
        for key, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key} is {value}: are all weights of the model finite?")


class _Count:
    """Passes progress on, and counts the readable images of the first pass."""

    def __init__(self, outer: Progress) -> None:
        self.outer = outer
        self.passes = self.first = 0

    def begin(self, total: int | None, what: str = "") -> None:
        self.passes += 1
        self.outer.begin(total, what)

    def advance(self, asked: int, read: int) -> None:
        if self.passes == 1:
            self.first += read
        self.outer.advance(asked, read)
