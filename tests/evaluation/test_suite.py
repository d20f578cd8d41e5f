import pytest
import torch

from attnmix.evaluation.exam import Question
from attnmix.evaluation.store import AnswerStore
from attnmix.evaluation.suite import Outcome, add_kept, ask_all
from tests.evaluation.exams import RandomImages, tiny_exam, tiny_subject


class Counted:
    """A question that says how many images it saw, and counts how often it is asked."""

    def __init__(self, name="count", *, error=None, missing=None):
        self.calls, self.error = [], error
        self.question = Question(name, "how many", self.ask, missing or (lambda exam: None))

    def ask(self, exam):
        self.calls.append(exam.subject.label)
        if self.error is not None and exam.subject.label == "b":
            raise self.error
        seen = sum(len(batch.index) for batch in exam.batches(exam.data.images))
        list(exam.batches(exam.data.images))  # a second pass counts no image twice
        return {"values": {"images": float(seen)}, "tables": {}, "notes": []}


def exams():
    return [tiny_exam(6, subject=tiny_subject(label)) for label in ("a", "b")]


def settings(exam, question):
    return {"limit": exam.limit}


def ask(found, tmp_path, *questions, **options):
    outcome = Outcome()
    table = {question.question.name: question.question for question in questions}
    ask_all(found, table, AnswerStore(tmp_path), settings, outcome=outcome, **options)
    return outcome


def test_every_model_is_asked_once(tmp_path):
    counted, begun = Counted(), []
    for _ in range(2):
        outcome = ask(exams(), tmp_path, counted, begin=lambda *heard: begun.append(heard))
        assert {label: answer["values"]["images"] for label, answer in outcome.answers["count"].items()} == {
            "a": 6,
            "b": 6,
        }
    assert counted.calls == ["a", "b"]
    assert begun == [("count", label, known) for known in (False, True) for label in ("a", "b")]


def test_an_answer_says_its_images_and_seconds(tmp_path):
    answer = ask(exams()[:1], tmp_path, Counted()).answers["count"]["a"]
    assert answer["images"] == 6
    assert answer["seconds"] > 0
    assert answer["skipped"] == []


def test_unreadable_images_are_not_counted(tmp_path):
    (exam, _) = exams()
    images = RandomImages(6, broken=[2])
    exam.data = exam.data._replace(images=images)
    assert ask([exam], tmp_path, Counted()).answers["count"]["a"]["images"] == 5


def test_what_cannot_be_asked_is_left_out_with_its_reason(tmp_path):
    counted = Counted(missing=lambda exam: "no boxes" if exam.subject.label == "a" else None)
    outcome = ask(exams(), tmp_path, counted)
    assert outcome.left_out == {"count": {"a": "no boxes"}}
    assert list(outcome.answers["count"]) == ["b"]


def test_a_failure_stops_neither_other_models_nor_other_questions(tmp_path):
    outcome = ask(exams(), tmp_path, Counted("bad", error=ValueError("no norm")), Counted("good"))
    assert outcome.failed == {"bad": {"b": "no norm"}}
    assert list(outcome.answers["bad"]) == ["a"]
    assert list(outcome.answers["good"]) == ["a", "b"]


def test_unreadable_images_end_the_round_and_what_was_answered_is_kept(tmp_path):
    with pytest.raises(OSError, match="cannot be read"):
        ask(exams(), tmp_path, Counted("first"), Counted("bad", error=OSError("20 images cannot be read")))
    again = Counted("first")
    ask(exams(), tmp_path, again)
    assert again.calls == []


def test_a_batch_too_large_says_so(tmp_path):
    with pytest.raises(ValueError, match="batch_size 5 does not fit into the memory of cpu: lower it"):
        ask(exams(), tmp_path, Counted(error=torch.OutOfMemoryError()))


def test_other_settings_are_refused_before_anything_is_asked(tmp_path):
    ask(exams(), tmp_path, Counted("second"))
    limited = exams()
    for exam in limited:
        exam.limit = 3
    first = Counted("first")
    with pytest.raises(ValueError, match="limit None, not 3"):
        ask(limited, tmp_path, first, Counted("second"))
    assert first.calls == []


def test_earlier_answers_join_if_their_settings_are_these(tmp_path):
    counted = Counted()
    ask(exams(), tmp_path, counted)
    table, outcome = {"count": counted.question}, Outcome()
    add_kept(exams(), table, AnswerStore(tmp_path), settings, outcome=outcome)
    assert list(outcome.answers["count"]) == ["a", "b"]
    limited, outcome = exams(), Outcome()
    limited[0].limit = 3
    add_kept(limited, table, AnswerStore(tmp_path), settings, outcome=outcome)
    assert list(outcome.answers["count"]) == ["b"]
