import pytest
import torch

from attnmix.backbone import BackboneView
from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.mixed_batches import mixed_batches
from attnmix.evaluation.region_attention import QUESTION, region_attention
from attnmix.evaluation.subject import Subject
from tests.backbone.families import FAMILIES, build
from tests.conftest import tiny_vit
from tests.evaluation.exams import MEAN, STD, RandomImages

COUNT = 5


def exam_of(model, size, **options):
    subject = Subject("tiny", model, [], (3, *size), MEAN, STD, fresh=lambda: model)
    return Exam(subject, ImageSet(RandomImages(COUNT, size=size)), **options)


def looped(matrix, is_source, prefix):
    """Mean over images of the four means over pairs of image tokens of `[B, M, M]`, in loops (Table A1)."""
    per_image = []
    for image in range(len(matrix)):
        row = {}
        for query in (True, False):
            for key in (True, False):
                pairs = [
                    float(matrix[image, prefix + i, prefix + j])
                    for i in range(is_source.shape[1])
                    for j in range(is_source.shape[1])
                    if bool(is_source[image, i]) == query and bool(is_source[image, j]) == key
                ]
                row[query, key] = sum(pairs) / len(pairs) if pairs else None
        if None not in row.values():
            per_image.append(row)
    return {pair: sum(row[pair] for row in per_image) / len(per_image) for pair in row}


@pytest.mark.parametrize(
    ("name", "block", "prefix"),
    [("vit", 1, 1), ("vit_registers", 1, 4), ("deit_distilled", 1, 2), ("cait", 1, 0), ("siglip", 1, 0)],
)
def test_equals_a_loop_over_pairs_of_tokens(name, block, prefix):
    exam = exam_of(build(name), FAMILIES[name].size, batch_size=3)
    view = exam.subject.view
    matrices, memberships = [], []
    for mixed in mixed_batches(exam, view):
        with torch.no_grad(), view.open_tap(None) as tap:
            view(mixed.images)
        matrices.append(tap.probabilities(block).mean(dim=1))
        memberships.append(mixed.is_source)
    wanted = looped(torch.cat(matrices), torch.cat(memberships), prefix)

    answer = QUESTION.ask(exam)
    assert QUESTION.missing(exam) is None
    names = {"source": True, "target": False}
    for row in answer["tables"]["regions"]:
        value = wanted[names[row["query"]], names[row["key"]]]
        assert row["mean attention"] == pytest.approx(value, rel=1e-4)
        assert row["times uniform"] == pytest.approx(value * memberships[0].shape[1], rel=1e-4)
        assert answer["values"][f"{row['query']} to {row['key']}"] == row["times uniform"]
    behind = [note for note in answer["notes"] if "behind it one query attends" in note]
    assert bool(behind) == (name in ("cait", "siglip"))


def test_a_hand_computed_image():
    matrix = torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.5, 0.5], [0.4, 0.1, 0.2]])[None]
    found = region_attention(
        lambda values: (matrix @ values[..., None])[..., 0], torch.tensor([[True, False, False]])
    )
    assert found[0].tolist() == [
        [pytest.approx(0.1), pytest.approx(0.25)],
        [pytest.approx(0.2), pytest.approx(0.325)],
    ]


def test_a_region_without_tokens_is_not_a_number():
    found = region_attention(lambda values: values, torch.tensor([[True, True]]))
    assert found.isnan().tolist() == [[[False, True], [True, True]]]


def test_uniform_attention_is_one_without_prefix_tokens():
    model = tiny_vit(class_token=False, global_pool="avg")
    with torch.no_grad():
        model.blocks[-1].attn.qkv.weight.zero_()
    answer = QUESTION.ask(exam_of(model, (16, 24)))
    assert list(answer["values"].values()) == [pytest.approx(1, rel=1e-5)] * 4


def test_does_not_depend_on_the_batch_size():
    model = tiny_vit()
    first, second = (QUESTION.ask(exam_of(model, (16, 24), batch_size=size))["values"] for size in (2, 7))
    assert first == {name: pytest.approx(value, rel=1e-5) for name, value in second.items()}


def test_images_covered_by_their_box_are_left_out_and_counted():
    model = tiny_vit(img_size=(8, 8), pos_embed="none")  # 2x2 tokens: many a box covers all
    exam = exam_of(model, (8, 8), seed=7)
    whole = sum(int(mixed.is_source.all(dim=1).sum()) for mixed in mixed_batches(exam, exam.subject.view))
    answer = QUESTION.ask(exam)
    assert whole > 0
    assert f"{whole} images left out, whose box covers the whole image" in answer["notes"]

    answer = QUESTION.ask(exam_of(tiny_vit(img_size=(4, 4), pos_embed="none"), (4, 4)))  # one token
    assert list(answer["values"].values()) == [None] * 4
    assert answer["tables"]["regions"][0]["mean attention"] is None


def test_windows_are_looked_at_together():
    answer = QUESTION.ask(exam_of(build("swin"), FAMILIES["swin"].size))
    assert any("attention between two windows counts as 0" in note for note in answer["notes"])
    assert all(0 < value < 4 for value in answer["values"].values())


def test_missing_says_why_and_runs_nothing():
    exam = exam_of(build("xcit"), FAMILIES["xcit"].size)
    assert "mixes channels, not tokens" in QUESTION.missing(exam)
    exam = exam_of(torch.nn.Conv2d(3, 2, 1), (8, 8))
    assert "Conv2d" in QUESTION.missing(exam)
    assert QUESTION.missing(exam_of(build("pvt_v2"), FAMILIES["pvt_v2"].size)) is None
    assert BackboneView(build("pvt_v2")).image_blocks == [0, 1, 2, 3]
