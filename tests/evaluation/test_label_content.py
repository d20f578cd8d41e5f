import pytest
import timm
import torch

import attnmix
from attnmix.evaluation import label_content
from attnmix.evaluation.label_content import (
    QUESTION,
    centre_prior,
    label_content_controls,
    label_content_error,
    visible_share,
)
from attnmix.evaluation.pasting import options_of_pasting, pasting_method
from attnmix.mixing import Paste, boxes_to_mask
from tests.conftest import NUM_CLASSES
from tests.evaluation.exams import tiny_exam, tiny_subject


@pytest.fixture
def pictures():
    """Images, labels and object masks: a box each, of various sizes."""
    boxes = torch.stack(
        [torch.arange(12) % 5, torch.arange(12) % 7, 4 + torch.arange(12) % 4, torch.full((12,), 6)], 1
    )
    return torch.randn(12, 3, 16, 24), torch.arange(12) % NUM_CLASSES, boxes_to_mask(boxes, (16, 24))


def test_a_subjects_method_is_judged_by_what_it_learnt():
    subject = tiny_subject()
    subject.method, subject.method_options = "automix", {"block": 1}
    asked = torch.randn(12, 3, 16, 24), torch.arange(12) % NUM_CLASSES, torch.rand(12, 16, 24) > 0.5

    def error():
        found, _ = label_content._policy_error(subject, "automix", {"block": 1}, asked, num_classes=5, seed=1)
        return found.mean

    fresh = error()
    method = attnmix.create_method("automix", num_classes=NUM_CLASSES, block=1, seed=7)
    attnmix.MixTask(subject.model, method)
    subject.method_learnt = {
        key: -3 * value if isinstance(value, torch.Tensor) else value for key, value in method.state_dict().items()
    }
    assert error() != fresh


def test_visible_share_counts_object_pixels_where_they_ended_up():
    masks = torch.zeros(2, 4, 4, dtype=torch.bool)
    masks[0, 0, :] = True  # 4 pixels in the first row
    masks[1, 3, :3] = True  # 3 pixels in the last row
    # rows 2 and 3 of image 1 go to rows 0 and 1 of image 0: its own object is covered, the other's moves in
    draw = Paste(torch.tensor([1, 0]), torch.tensor([[0, 0, 2, 4], [0, 0, 1, 2]]), torch.tensor([[2, 0], [0, 0]]))
    share = visible_share(draw.apply(torch.zeros(2, 3, 4, 4)), masks)
    assert share[0] == 1.0
    assert share[1].item() == pytest.approx(2 / 5)  # two pixels of image 0's object beside the three of its own


def test_visible_share_is_nan_where_no_object_is_left():
    masks = torch.zeros(1, 4, 4, dtype=torch.bool)
    draw = Paste(torch.tensor([0]), torch.tensor([[0, 0, 2, 2]]))
    assert visible_share(draw.apply(torch.zeros(1, 3, 4, 4)), masks).isnan().all()


def test_error_of_area_labels_equals_a_plain_loop(make_vit, pictures):
    images, labels, masks = pictures
    method = pasting_method("cutmix", num_classes=NUM_CLASSES, seed=3)
    found = label_content_error(make_vit(), method, images, labels, masks, seed=1)

    draws = pasting_method("cutmix", num_classes=NUM_CLASSES, seed=3)
    order = torch.Generator().manual_seed(1)
    errors: dict[int, list[float]] = {}
    by_draw = []
    for _ in range(192):
        index = torch.randperm(12, generator=order)[:8]
        mixed = draws.mix(None, images[index], labels[index])
        by_draw.append([])
        for i in range(8):
            partner = index[mixed.source_index[i]]
            inside = mixed.source_mask[i]
            source = int((masks[partner] & inside).sum())
            target = int((masks[index[i]] & ~inside).sum())
            if source + target:
                weight = float(inside.float().mean())
                errors.setdefault(int(index[i]), []).append(weight - source / (source + target))
                by_draw[-1].append(weight - source / (source + target))
    flat = torch.tensor([e for row in errors.values() for e in row], dtype=torch.float64)
    assert found.mean == pytest.approx(flat.abs().mean().item(), abs=1e-6)
    assert found.bias == pytest.approx(flat.mean().item(), abs=1e-6)

    def squares(clusters):
        sums = [sum(abs(e) - found.mean for e in row) for row in clusters]
        return sum(s * s for s in sums) * len(sums) / (len(sums) - 1)

    single = sum((abs(e) - found.mean) ** 2 for row in by_draw for e in row)
    wanted = max(squares(errors.values()) + squares(by_draw) - single, single) ** 0.5 / len(flat)
    assert found.standard_error == pytest.approx(wanted, rel=1e-4)


def test_the_standard_error_is_of_the_size_of_the_spread_over_draws(make_vit, pictures):
    model = make_vit()
    for name in ("cutmix", "smmix"):
        found = [
            label_content_error(model, pasting_method(name, num_classes=NUM_CLASSES, seed=s), *pictures, seed=s)
            for s in range(5)
        ]
        spread = torch.tensor([row.mean for row in found]).std().item()
        assert max(row.standard_error for row in found) > 0.7 * spread


def test_the_model_is_judged_in_evaluation_mode_and_given_back(make_vit, pictures):
    model = make_vit(proj_drop_rate=0.5).train()
    method = pasting_method("transmix", num_classes=NUM_CLASSES)
    first = label_content_error(model, method, *pictures)
    method.generator.manual_seed(0)
    assert label_content_error(model, method, *pictures) == first
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_method_is_made_to_paste_and_keeps_its_other_options():
    method = pasting_method("transmix", num_classes=3, attention_share=1.0, prob=0.2, mixup_prob=0.9)
    assert (method.sampler.prob, method.sampler.mixup_prob, method.sampler.mode) == (1.0, 0.0, "elem")
    assert method.label.attention_share == 1.0
    assert type(pasting_method("mixup+cutmix", num_classes=3)) is attnmix.METHODS["cutmix"]
    assert pasting_method("mixup", num_classes=3) is None
    assert pasting_method("none", num_classes=3) is None


def test_controls_need_no_training(make_vit, pictures):
    images, labels, masks = pictures
    rows = label_content_controls(make_vit(), images, labels, masks, num_classes=NUM_CLASSES)
    assert [name.split(" (")[0] for name in rows] == [
        "constant one half",
        "area of the box",
        "centre prior in attention's place",
        "untrained network",
        "area of whole patches",
        "untrained network",
    ]
    assert rows["area of whole patches (TL-Align)"] != rows["area of the box (CutMix)"]
    traced = label_content_error(
        make_vit(), pasting_method("tl-align", num_classes=NUM_CLASSES), images, labels, masks
    )
    assert rows["untrained network (TL-Align)"].mean == pytest.approx(traced.mean, abs=1e-6)
    area = label_content_error(
        make_vit(), pasting_method("cutmix", num_classes=NUM_CLASSES), images, labels, masks
    )
    assert rows["area of the box (CutMix)"].mean == pytest.approx(area.mean, abs=1e-6)
    assert rows["constant one half"].mean > area.mean


def test_controls_read_image_attention_where_there_is_no_class_token(make_vit, pictures):
    images, labels, masks = pictures
    model = make_vit(class_token=False, global_pool="avg")
    assert len(label_content_controls(model, images, labels, masks, num_classes=NUM_CLASSES)) == 6


def test_controls_leave_out_labels_that_cannot_be_traced(pictures):
    _, labels, masks = pictures
    images, masks = torch.randn(12, 3, 32, 48), masks.repeat_interleave(2, 1).repeat_interleave(2, 2)
    size = {"img_size": (32, 48), "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = timm.create_model("xcit_nano_12_p16_224", num_classes=NUM_CLASSES, **size)
    rows = label_content_controls(model, images, labels, masks, num_classes=NUM_CLASSES)
    assert not any("TL-Align" in name for name in rows)


def test_centre_prior_is_symmetric_and_highest_in_the_middle():
    prior = centre_prior((5, 7)).reshape(5, 7)
    assert prior.sum().item() == pytest.approx(1)
    assert torch.allclose(prior, prior.flip(0))
    assert torch.allclose(prior, prior.flip(1))
    assert prior.argmax() == 2 * 7 + 3


class Boxes:
    """A box as each image's object; no mask of the images in `unknown`."""

    def __init__(self, unknown=()):
        self.unknown = unknown

    def masks(self, index):
        boxes = torch.stack([index % 5, index % 7, 4 + index % 4, torch.full_like(index, 6)], 1)
        masks = boxes_to_mask(boxes, (16, 24)).to(torch.int8)
        masks[:, :2] = -1
        for place, number in enumerate(index.tolist()):
            if number in self.unknown:
                masks[place] = -1
        return masks

    def boxes(self, index):
        raise AssertionError("not needed")


class OnlyBoxes(Boxes):
    def masks(self, index):
        return None


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(label_content, "DRAWS", 5)


def labels_of(answer, kind="method"):
    return {row["label"]: row for row in answer["tables"]["labels"] if row["kind"] == kind}


def test_the_question_asks_for_every_policy_beside_the_controls(few_draws):
    exam = tiny_exam(14, truth=Boxes(unknown=(0, 5)), seed=2)
    answer = QUESTION.ask(exam)
    rows = labels_of(answer)
    assert set(rows) == {"cutmix", "transmix", "tl-align", "smmix"}
    known = torch.tensor([i for i in range(14) if i not in (0, 5)])
    data, masks = exam.data.images, Boxes().masks(known) == 1
    asked = data.tensors[known], data.labels[known], masks
    for name, row in rows.items():
        method = pasting_method(name, num_classes=NUM_CLASSES, seed=2)
        error = label_content_error(exam.subject.model, method, *asked, seed=2)
        assert row["label-content error"] == pytest.approx(error.mean, abs=1e-6)
        assert row["standard error"] == pytest.approx(error.standard_error, abs=1e-6)
        assert row["bias"] == pytest.approx(error.bias, abs=1e-6)
        assert answer["values"][f"label-content error, {name}"] == row["label-content error"]
    controls = label_content_controls(exam.subject.fresh(), *asked, num_classes=NUM_CLASSES, seed=2)
    assert {label: row["bias"] for label, row in labels_of(answer, "control").items()} == {
        label: pytest.approx(error.bias, abs=1e-6) for label, error in controls.items()
    }
    assert "2 without object pixels are left out" in answer["notes"][0]


def test_labels_are_the_models(few_draws):
    exam = tiny_exam(12, truth=Boxes(), subject=tiny_subject(num_classes=3))
    exam.data.images.labels[:] = 4
    with pytest.raises(ValueError, match="label"):  # two classes more than the model has
        label_content.label_content_error(
            exam.subject.model,
            pasting_method("cutmix", num_classes=3),
            exam.data.images.tensors,
            exam.data.images.labels,
            Boxes().masks(torch.arange(12)) == 1,
        )
    exam.data = exam.data._replace(columns=torch.tensor([2, 1, 0, 2, 1]))
    assert labels_of(QUESTION.ask(exam))


def test_the_own_method_is_judged_with_its_own_options(few_draws):
    subject = tiny_subject()
    subject.method, subject.method_options = (
        "transmix",
        {"attention_share": 1.0, "mixup_prob": 0.2, "smoothing": 0},
    )
    rows = labels_of(QUESTION.ask(tiny_exam(12, truth=Boxes(), subject=subject)))
    assert len(rows) == 5
    assert rows["transmix (attention_share=1.0)"]["bias"] != rows["transmix"]["bias"]
    subject.method_options = {"attention_share": 0.5, "mixup_prob": 0.2}
    assert len(labels_of(QUESTION.ask(tiny_exam(12, truth=Boxes(), subject=subject)))) == 4
    subject.method = "none"
    subject.method_options = {"smoothing": 0.2}
    assert len(labels_of(QUESTION.ask(tiny_exam(12, truth=Boxes(), subject=subject)))) == 4


def test_options_that_count_where_it_pastes():
    given = {"side_ratio": [0.25, 0.75], "source": "random", "prob": 0.5, "mixup_alpha": 1.0}
    assert options_of_pasting("smmix", given) == {"source": "random"}
    assert options_of_pasting("mixup+cutmix", {"cutmix_alpha": 2.0, "mode": "pair"}) == {"cutmix_alpha": 2.0}
    assert options_of_pasting("mixup", {"mixup_alpha": 2.0}) == {}


def test_a_model_without_class_row_is_judged_by_image_attention(few_draws):
    subject = tiny_subject(class_token=False, global_pool="avg")
    answer = QUESTION.ask(tiny_exam(12, truth=Boxes(), subject=subject))
    assert "transmix" in labels_of(answer)
    assert any(note.startswith("transmix reads image attention") for note in answer["notes"])
    subject.method, subject.method_options = "transmix", {"attention": "class-rollout"}
    answer = QUESTION.ask(tiny_exam(12, truth=Boxes(), subject=subject))
    assert any(note.startswith("transmix (attention=class-rollout) is left out: ") for note in answer["notes"])
    assert len(labels_of(answer)) == 4


def test_what_the_question_misses():
    assert QUESTION.missing(tiny_exam(truth=Boxes())) is None
    for truth in (None, OnlyBoxes()):
        assert "give --annotations with masks" in QUESTION.missing(tiny_exam(truth=truth))
    with pytest.raises(ValueError, match="1 of 12 images have object masks, but 2 or more"):
        QUESTION.ask(tiny_exam(12, truth=Boxes(unknown=range(11))))
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 24, 5))
    subject = label_subject(plain)
    assert "does not lay out its tokens" in QUESTION.missing(tiny_exam(truth=Boxes(), subject=subject))


def label_subject(model):
    return type(tiny_subject())("plain", model, [], (3, 16, 24), (0,) * 3, (1,) * 3, fresh=lambda: model)
