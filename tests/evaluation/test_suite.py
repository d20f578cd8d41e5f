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


@pytest.mark.parametrize("workers", [0, 1])
def test_images_without_labels_fail_a_question_in_one_line(tmp_path, workers):
    exam = tiny_exam(6, workers=workers)
    exam.data.images.labels[2] = -1
    outcome = ask([exam], tmp_path, Counted())
    (message,) = outcome.failed["count"].values()
    last = exam.data.images.num_classes - 1
    assert message == (
        f"image 2 has the label -1, but labels are 0 to {last}: evaluate on a split that has labels"
    )


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


def test_too_many_unreadable_images_fail_what_looked_at_them(tmp_path):
    outcome = ask(exams(), tmp_path, Counted("bad", error=OSError("20 images cannot be read")), Counted("good"))
    assert outcome.failed == {"bad": {"b": "20 images cannot be read"}}
    assert list(outcome.answers["good"]) == ["a", "b"]


def test_a_disk_that_takes_no_answer_ends_the_round(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr(AnswerStore, "save", full)
    with pytest.raises(OSError, match="no space left"):
        ask(exams(), tmp_path, Counted())


def test_what_keeps_a_question_from_being_asked_may_fail_too(tmp_path):
    def broken(exam):
        raise ValueError("mask 0 is damaged")

    outcome = ask(exams(), tmp_path, Counted("bad", missing=broken), Counted("good"))
    assert outcome.failed == {"bad": {"a": "mask 0 is damaged", "b": "mask 0 is damaged"}}
    assert list(outcome.answers["good"]) == ["a", "b"]


def test_logits_that_are_not_finite_are_no_answer(tmp_path):
    def ask_logits(exam):
        for batch in exam.batches(exam.data.images):
            exam.subject.logits(batch.images, torch.tensor([0, 1])).argmax(dim=1)
        return {"values": {"top-1 %": 20.0}, "tables": {}, "notes": []}

    table, outcome, found = {"q": Question("q", "", ask_logits)}, Outcome(), exams()
    with torch.no_grad():
        found[0].subject.model.head.bias[4] = float("nan")  # of a class that nobody asks about
    ask_all(found, table, AnswerStore(tmp_path), settings, outcome=outcome)
    assert outcome.failed == {
        "q": {"a": "the logits of 6 images, disturbed or not, are not finite: so is no answer"}
    }
    assert list(outcome.answers["q"]) == ["b"]


def test_numbers_that_are_not_finite_are_no_answer(tmp_path):
    def nan(exam):
        return {"values": {}, "tables": {"t": [{"drift": float("inf")}]}, "notes": []}

    outcome = Outcome()
    table = {"q": Question("q", "", nan)}
    ask_all(exams()[:1], table, AnswerStore(tmp_path), settings, outcome=outcome)
    assert outcome.failed == {"q": {"a": "drift is inf: are all weights of the model finite?"}}
    assert AnswerStore(tmp_path).load("a", "q", settings(exams()[0], table["q"])) is None


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
