import pytest
import torch
from torch import nn

from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.mixed_accuracy import MIXERS, QUESTION, mixing_method, right_of_two
from attnmix.evaluation.subject import Subject
from tests.conftest import tiny_vit
from tests.evaluation.exams import RandomImages, tiny_exam, tiny_subject


def test_right_of_two_by_hand():
    logits = torch.tensor([[5.0, 4, 1, 0], [5, 4, 1, 0], [5, 4, 1, 0], [0, 1, 4, 5]])
    source, target = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 2])
    first, both = right_of_two(logits, source, target)
    assert first.tolist() == [True, False, False, True]
    assert both.tolist() == [True, False, False, True]
    first, both = right_of_two(logits[:1], torch.tensor([3]), torch.tensor([0]))
    assert (first.item(), both.item()) == (True, False)


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_mixes_at_every_step_by_pasting_where_it_can(name):
    shares = mixing_method(name, num_classes=3, seed=0).shares
    assert shares == {"keep": 0, "blend": name == "mixup", "paste": name != "mixup"}


def rows_of(answer):
    return {row["method"]: row for row in answer["tables"]["methods"]}


def test_the_answer_is_that_of_a_plain_loop():
    exam = tiny_exam(21, seed=4)
    answer = QUESTION.ask(exam)
    rows, data = rows_of(answer), exam.data.images
    order = torch.randperm(21, generator=torch.Generator().manual_seed(4)).tolist()
    for name in ("cutmix", "mixup"):
        method = mixing_method(name, num_classes=5, seed=4)
        seen = right = exact = 0
        for start in range(0, 21, 8):
            index = order[start : start + 8]
            mixed = method.mix(None, torch.stack([data[i][0] for i in index]), index)
            for place, i in enumerate(index):
                classes = {data[i][1], data[index[place - 1]][1]}
                if len(classes) == 1:
                    continue
                with torch.no_grad():
                    ranked = exam.subject.model(mixed.images[place][None])[0].argsort(descending=True).tolist()
                seen += 1
                right += ranked[0] in classes
                exact += set(ranked[:2]) == classes
        assert rows[name]["images"] == seen < 21
        assert rows[name]["top-1 %"] == pytest.approx(100 * right / seen)
        assert rows[name]["top-2 %"] == pytest.approx(100 * exact / seen)
        assert answer["values"][f"top-2 % on {name} images"] == rows[name]["top-2 %"]
    assert 0 < rows["cutmix"]["top-2 %"] < rows["cutmix"]["top-1 %"] < 100
    assert set(rows) == {"mixup", "cutmix", "smmix", "tl-align"}


def test_classes_are_columns_of_the_model():
    columns = torch.tensor([3, 0, 4, 1, 2])
    plain, other = RandomImages(20), RandomImages(20)
    other.labels = torch.tensor([columns.tolist().index(label) for label in plain.labels.tolist()])
    subject = tiny_subject()
    found = QUESTION.ask(Exam(subject, ImageSet(other, columns)))
    assert found["values"] == QUESTION.ask(Exam(subject, ImageSet(plain)))["values"]


def test_classes_that_the_data_lack_are_no_predictions():
    subject, three = tiny_subject(), RandomImages(20)
    three.labels, three.class_names = three.labels % 3, three.class_names[:3]
    with torch.no_grad():
        subject.model.head.bias[4] = 1000
    among_all = rows_of(QUESTION.ask(Exam(subject, ImageSet(three))))
    among_three = rows_of(QUESTION.ask(Exam(subject, ImageSet(three, torch.tensor([0, 1, 2])))))
    assert all(row["top-1 %"] == 0 for row in among_all.values())
    assert all(row["top-1 %"] > 0 for row in among_three.values())


def test_pairs_do_not_depend_on_the_model_and_do_on_the_seed():
    others = Subject("other", tiny_vit(depth=2), [], (3, 16, 24), (0,) * 3, (1,) * 3, fresh=tiny_vit)
    count = [rows_of(QUESTION.ask(tiny_exam(24, **options))) for options in ({}, {"subject": others}, {"seed": 3})]
    first, other, reseeded = ({name: row["images"] for name, row in rows.items()} for rows in count)
    assert first == other
    assert first != reseeded


def test_pairs_of_one_class_are_left_out():
    exam = tiny_exam(16)
    exam.data.images.labels[:] = 2
    answer = QUESTION.ask(exam)
    assert all(row["images"] == 0 and row["top-1 %"] is None for row in answer["tables"]["methods"])
    exam.data.images.labels[3] = 1
    assert {row["images"] for row in QUESTION.ask(exam)["tables"]["methods"]} == {2}


def test_a_method_that_the_model_cannot_take_is_left_out():
    answer = QUESTION.ask(tiny_exam(16, subject=tiny_subject(patch_drop_rate=0.5)))
    assert "smmix" not in rows_of(answer)
    assert "cutmix" in rows_of(answer)
    assert any(note.startswith("smmix is left out: ") and "patch_drop_rate=0" in note for note in answer["notes"])


def test_the_model_is_given_back():
    exam = tiny_exam(16, subject=tiny_subject(proj_drop_rate=0.5))
    exam.subject.model.train()
    state = torch.get_rng_state()
    assert QUESTION.ask(exam) == QUESTION.ask(exam)
    assert torch.get_rng_state().equal(state)
    assert exam.subject.model.training
    assert all(parameter.grad is None for parameter in exam.subject.model.parameters())


def test_what_is_missing():
    assert QUESTION.missing(tiny_exam()) is None
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, 5))
    plain = Subject("plain", network, [], (3, 16, 24), (0,) * 3, (1,) * 3, fresh=tiny_vit)
    assert "does not lay out its tokens" in QUESTION.missing(tiny_exam(subject=plain))
    two = tiny_exam()
    two.data.images.class_names = ["a", "b"]
    assert "needs 3 classes or more" in QUESTION.missing(two)
