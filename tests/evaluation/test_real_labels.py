import pytest
import torch
from timm.data import ImageNetInfo
from timm.data.real_labels import RealLabelsImagenet

from attnmix.evaluation.accuracy import QUESTION
from attnmix.evaluation.real_labels import RealLabels, real_labels, real_top1, validation_number
from tests.evaluation.pixel_exam import PixelImages, pixel_exam

SYNSETS = ImageNetInfo("imagenet-1k").label_names()


def files(numbers):
    return [f"val/n01440764/ILSVRC2012_val_{number:08d}.JPEG" for number in numbers]


def images_of(numbers, outputs=1000, **options):
    """Logits that give every third image its first ReaL label, where it has one, and others anything."""
    table = real_labels()
    logits = torch.randn(len(numbers), outputs, generator=torch.Generator().manual_seed(0))
    for row, number in enumerate(numbers):
        if row % 3 == 0 and table[number - 1] and table[number - 1][0] < outputs:
            logits[row, table[number - 1][0]] = 9
    return PixelImages(logits, torch.zeros(len(numbers)).long(), files=files(numbers), **options)


def test_agreement_is_timms_on_all_images():
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 50_001)]
    timms = RealLabelsImagenet(names, topk=(1,))
    guesses = torch.randint(1000, (50_000,), generator=torch.Generator().manual_seed(0))
    guesses[:5000] = torch.tensor([(labels or [0])[-1] for labels in real_labels()[:5000]])
    timms.add_result(torch.zeros(50_000, 1000).scatter_(1, guesses[:, None], 1))
    top1, labelled = real_top1(guesses.tolist(), real_labels())
    assert top1 == pytest.approx(timms.get_accuracy(1))
    assert labelled == len(timms.is_correct[1]) == 46_837


def test_images_without_labels_are_left_out():
    assert real_top1([4, 7, 1], [[3, 4], [], [2]]) == (50.0, 2)
    assert real_top1([4], [[]]) == (None, 0)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ILSVRC2012_val_00000001.JPEG", 0),
        ("/data/val/n01440764/ILSVRC2012_val_00050000.png", 49_999),
        ("ILSVRC2012_val_00000293_n01440764.JPEG", 292),
        ("ILSVRC2012_val_00050001.JPEG", None),
        ("ILSVRC2012_val_00000000.JPEG", None),
        ("ILSVRC2012_test_00000001.JPEG", None),
        ("image 3", None),
    ],
)
def test_file_names(name, number):
    assert validation_number(name) == number


def test_the_question_judges_part_of_the_set():
    numbers = [50_000, 2, 1, 17, 3, 900, 31_000, 4, 5, 6, 7, 8]  # image 1 has no label
    images = images_of(numbers)
    answer = QUESTION.ask(pixel_exam(images, class_names=SYNSETS, batch_size=5))
    table, right = real_labels(), []
    for row, number in enumerate(numbers):
        if table[number - 1]:
            right.append(int(images.logits[row].argmax()) in table[number - 1])
    assert len(right) == 11
    assert 0 < sum(right) < 11
    assert answer["values"]["ReaL top-1 %"] == pytest.approx(100 * sum(right) / 11)
    assert any("11 of 12 images" in note for note in answer["notes"])


def test_unreadable_images_shift_nothing():
    numbers = list(range(2, 40))
    images = images_of(numbers, broken=[0, 5])
    answer = QUESTION.ask(pixel_exam(images, class_names=SYNSETS, batch_size=7))
    table = real_labels()
    kept = [row for row, number in enumerate(numbers) if row not in (0, 5) and table[number - 1]]
    right = [int(images.logits[row].argmax()) in table[numbers[row] - 1] for row in kept]
    assert answer["values"]["ReaL top-1 %"] == pytest.approx(100 * sum(right) / len(right))


def test_predictions_are_numbered_as_imagenets():
    """A model of four of the classes, in an order of its own; data of three of these."""
    known = real_labels()[6 - 1]  # [57]
    names = [SYNSETS[0], SYNSETS[known[0]], SYNSETS[400], SYNSETS[9]]
    columns = torch.tensor([2, 1, 0])
    images = PixelImages(
        torch.tensor([[0.0, 5, 1, 9]]), torch.zeros(1).long(), files=files([6]), class_names=["a", "b", "c"]
    )
    values = QUESTION.ask(pixel_exam(images, outputs=4, columns=columns, class_names=names))["values"]
    assert values["ReaL top-1 %"] == 100
    swapped = [names[0], names[2], names[1], names[3]]
    values = QUESTION.ask(pixel_exam(images, outputs=4, columns=columns, class_names=swapped))["values"]
    assert values["ReaL top-1 %"] == 0


def test_no_value_where_no_image_has_a_label():
    answer = QUESTION.ask(pixel_exam(images_of([1]), class_names=SYNSETS))
    assert "ReaL top-1 %" not in answer["values"]
    assert any("0 of 1 images" in note for note in answer["notes"])


def test_other_files_and_other_classes_have_no_real_labels():
    plain = PixelImages(torch.randn(3, 1000), torch.zeros(3).long())
    assert RealLabels.of(pixel_exam(plain, class_names=SYNSETS)) is None
    named = images_of([1, 2, 3], outputs=4)
    assert RealLabels.of(pixel_exam(named, class_names=["cat", "dog", "cow", "elk"])) is None
    assert RealLabels.of(pixel_exam(named)) is None  # four outputs of unknown names
    assert RealLabels.of(pixel_exam(images_of([1, 2, 3]))) is not None  # a thousand of them
    assert RealLabels.of(pixel_exam(PixelImages(torch.zeros(0, 4), torch.zeros(0)))) is None
