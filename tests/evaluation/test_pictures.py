import numpy as np
import pytest
import torch
from timm.models.vision_transformer import ResPostBlock
from torch import nn

from attnmix.evaluation.activation_maps import activation_maps
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.pictures import QUESTION
from attnmix.evaluation.subject import Subject
from attnmix.methods import create_method
from attnmix.mixing import boxes_to_mask
from attnmix.task import MixTask
from tests.conftest import NUM_CLASSES, tiny_vit
from tests.evaluation.exams import MEAN, STD, RandomImages, tiny_exam, tiny_subject


class Boxes:
    def masks(self, index):
        boxes = torch.stack([index % 5, index % 7, 4 + index % 4, torch.full_like(index, 6)], 1)
        return boxes_to_mask(boxes, (16, 24)).to(torch.int8)


@pytest.fixture(scope="module")
def answer():
    return QUESTION.ask(tiny_exam(26, truth=Boxes(), seed=1, limit=20))


def test_six_images_evenly_whatever_the_limit(answer):
    assert [row["image"] for row in answer["tables"]["unmixed"]] == [0, 5, 10, 15, 20, 25]
    kinds = {name: (array.dtype.name, array.shape) for name, array in answer["arrays"].items()}
    picture, tokens = ("uint8", (6, 16, 24, 3)), ("float16", (6, 4, 6))
    assert kinds == {
        "images": picture,
        "attention": tokens,
        "activation": tokens,
        "mixed_images": picture,
        "mixed_attention": tokens,
        "mixed_activation_source": tokens,
        "mixed_activation_target": tokens,
        "mixed_pasted": ("bool", (6, 16, 24)),
        "gallery_source": ("uint8", (3, 16, 24, 3)),
        "gallery_target": ("uint8", (3, 16, 24, 3)),
        "gallery_mixed": ("uint8", (3, 16, 24, 3)),
        "gallery_attention": ("float16", (3, 4, 6)),
        "gallery_pasted": ("bool", (3, 16, 24)),
    }
    assert answer["values"] == {}


def test_unmixed_images_and_what_is_seen_in_them(answer):
    exam = tiny_exam(26)
    subject, data, arrays = exam.subject, exam.data.images, answer["arrays"]
    index = [0, 5, 10, 15, 20, 25]
    with torch.no_grad():
        probability = subject.model(data.tensors[index]).softmax(dim=1)
    for row, likely, number in zip(answer["tables"]["unmixed"], probability, index, strict=True):
        assert row["label"] == f"class {data.labels[number]}"
        assert row["predicted"] == f"class {likely.argmax()}"
        assert row["confidence %"] == pytest.approx(100 * likely.max().item(), rel=1e-4)
    pixels = data.tensors[index] * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
    np.testing.assert_allclose(arrays["images"], 255 * pixels.permute(0, 2, 3, 1).numpy(), atol=0.51)
    attention = subject.saliency(data.tensors[index]).reshape(6, 4, 6)
    np.testing.assert_allclose(arrays["attention"], attention, rtol=2e-3, atol=1e-6)
    maps = activation_maps(subject, data.tensors[index], data.labels[index])
    np.testing.assert_allclose(arrays["activation"], maps, atol=1e-3)


def test_mixed_images_are_boxes_of_the_one_before(answer):
    exam, arrays = tiny_exam(26), answer["arrays"]
    mixed = arrays["images"].copy()
    for i, inside in enumerate(arrays["mixed_pasted"]):
        assert inside[np.ix_(inside.any(axis=1), inside.any(axis=0))].all()  # a box
        mixed[i][inside] = arrays["images"][i - 1][inside]
    assert np.array_equal(mixed, arrays["mixed_images"])
    labels = [f"class {exam.data.images.labels[i]}" for i in (0, 5, 10, 15, 20, 25)]
    rows = answer["tables"]["mixed"]
    assert [row["target label"] for row in rows] == labels
    assert [row["source label"] for row in rows] == [labels[-1], *labels[:-1]]
    # the classes whose activation is shown
    pixels = torch.from_numpy(mixed / 255).float().permute(0, 3, 1, 2)
    images = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    numbers = torch.tensor([int(label[-1]) for label in labels])
    for name, classes in (("source", numbers.roll(1)), ("target", numbers)):
        wanted = activation_maps(exam.subject, images, classes)
        np.testing.assert_allclose(arrays[f"mixed_activation_{name}"], wanted, atol=0.05)
    with torch.no_grad():
        ranked = exam.subject.model(images).argsort(dim=1, descending=True)
    assert [row["first"] for row in rows] == [f"class {row[0]}" for row in ranked]
    assert [row["second"] for row in rows] == [f"class {row[1]}" for row in ranked]


def test_boxes_are_the_seeds_alone(answer):
    other = Subject("other", tiny_vit(depth=2), [], (3, 16, 24), MEAN, STD, fresh=tiny_vit)
    boxes = answer["arrays"]["mixed_pasted"]
    assert np.array_equal(QUESTION.ask(tiny_exam(26, subject=other, seed=1))["arrays"]["mixed_pasted"], boxes)
    assert not np.array_equal(QUESTION.ask(tiny_exam(26, seed=2))["arrays"]["mixed_pasted"], boxes)


def test_the_gallery_is_by_transmix_where_nothing_else_is_known(answer):
    rows, arrays = answer["tables"]["gallery"], answer["arrays"]
    assert [row["method"] for row in rows] == ["transmix"] * 3
    for row, inside, mixed, source in zip(
        rows, arrays["gallery_pasted"], arrays["gallery_mixed"], arrays["gallery_source"], strict=True
    ):
        assert np.array_equal(mixed[inside], source[inside])
        assert row["area"] == pytest.approx(inside.mean())
        assert 0 <= row["visible"] <= 1
    assert any(row["label"] != row["area"] for row in rows)
    assert all(row["visible"] is None for row in QUESTION.ask(tiny_exam(12))["tables"]["gallery"])


@pytest.mark.parametrize(
    ("method", "options", "shown"),
    [
        ("smmix", {"side_ratio": [0.5, 0.5], "smoothing": 0.0}, "smmix (side_ratio=[0.5, 0.5])"),
        ("mixup+cutmix", {}, "mixup+cutmix"),
        ("mixup", {}, "transmix"),
    ],
)
def test_the_gallery_is_by_the_method_that_it_was_trained_with(method, options, shown):
    subject = tiny_subject()
    subject.method, subject.method_options = method, options
    answer = QUESTION.ask(tiny_exam(12, subject=subject))
    assert {row["method"] for row in answer["tables"]["gallery"]} == {shown}
    if method == "smmix":
        pasted = answer["arrays"]["gallery_pasted"]
        assert pasted.any(axis=2).sum(axis=1).tolist() == [8] * 3
        assert pasted.any(axis=1).sum(axis=1).tolist() == [12] * 3


def test_the_gallery_is_by_what_the_method_learnt():
    subject = tiny_subject()
    subject.method, subject.method_options = "automix", {"block": 1}
    fresh = QUESTION.ask(tiny_exam(12, subject=subject))["arrays"]["gallery_mixed"]
    method = create_method("automix", num_classes=NUM_CLASSES, block=1, seed=7)
    MixTask(subject.model, method)
    subject.method_learnt = {
        key: -3 * value if isinstance(value, torch.Tensor) else value for key, value in method.state_dict().items()
    }
    assert not np.array_equal(QUESTION.ask(tiny_exam(12, subject=subject))["arrays"]["gallery_mixed"], fresh)
    subject.method_learnt = {"of": torch.zeros(1), "another method": torch.zeros(1)}
    assert np.array_equal(QUESTION.ask(tiny_exam(12, subject=subject))["arrays"]["gallery_mixed"], fresh)


def test_without_a_class_token_the_gallery_is_cutmixs():
    answer = QUESTION.ask(tiny_exam(12, subject=tiny_subject(class_token=False, global_pool="avg")))
    assert {row["method"] for row in answer["tables"]["gallery"]} == {"cutmix"}
    assert any(note.startswith("no gallery by transmix: ") for note in answer["notes"])


def test_a_model_without_activation_maps_has_the_rest():
    answer = QUESTION.ask(tiny_exam(12, subject=tiny_subject(block_fn=ResPostBlock)))
    assert not [name for name in answer["arrays"] if "activation" in name]
    assert any(note.startswith("no activation maps: ") for note in answer["notes"])
    assert len(answer["tables"]["mixed"]) == 6


def test_classes_are_columns_of_the_model():
    columns = torch.tensor([3, 0, 4, 1, 2])
    data = RandomImages(12)
    plain = QUESTION.ask(Exam(tiny_subject(), ImageSet(data)))
    other = RandomImages(12)
    other.labels = torch.tensor([columns.tolist().index(label) for label in data.labels.tolist()])
    other.class_names = [data.class_names[number] for number in columns]
    found = QUESTION.ask(Exam(tiny_subject(), ImageSet(other, columns)))
    for row, same in zip(found["tables"]["unmixed"], plain["tables"]["unmixed"], strict=True):
        assert row.pop("confidence %") == pytest.approx(same.pop("confidence %"), rel=1e-5)
    assert found["tables"] == plain["tables"]
    assert np.array_equal(found["arrays"]["activation"], plain["arrays"]["activation"])


def test_the_model_is_given_back():
    exam = tiny_exam(12, subject=tiny_subject(proj_drop_rate=0.5))
    state = torch.get_rng_state()
    QUESTION.ask(exam)
    assert torch.get_rng_state().equal(state)
    assert not exam.subject.model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in exam.subject.model.parameters())
    assert not any(module._forward_hooks for module in exam.subject.model.modules())


def test_a_network_without_attention_misses_it():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 24, 5))
    plain = Subject("plain", network, [], (3, 16, 24), MEAN, STD, fresh=tiny_vit)
    assert "does not lay out its tokens" in QUESTION.missing(tiny_exam(subject=plain))
