import pytest
import torch

from attnmix.evaluation.exam import Exam, ImageSet
from attnmix.evaluation.fluctuation import QUESTION, fluctuation, presence_measures
from attnmix.evaluation.mixed_batches import mixed_batches
from attnmix.evaluation.subject import Subject
from attnmix.methods.tl_align import AlignedLabel
from attnmix.mixing import MixedBatch, Paste
from tests.backbone.families import FAMILIES, build
from tests.conftest import tiny_vit
from tests.evaluation.exams import MEAN, STD, RandomImages

COUNT = 5


def exam_of(model, size, **options):
    subject = Subject("tiny", model, [], (3, *size), MEAN, STD, fresh=lambda: model)
    return Exam(subject, ImageSet(RandomImages(COUNT, size=size)), **options)


def looped_presence(matrix, prefix):
    """TL-Align eq. 2 from one image's attention `[M][M]`, w[i][j] being what j gives to i."""
    count = len(matrix) - prefix
    w = [[abs(matrix[prefix + j][prefix + i]) for j in range(count)] for i in range(count)]
    return [sum(w[i][j] / sum(w[k][j] for k in range(count)) for j in range(count)) for i in range(count)]


def test_every_measure_equals_loops(make_vit):
    exam = exam_of(make_vit(reg_tokens=2), (16, 24))
    view, prefix = exam.subject.view, 3
    (mixed,) = mixed_batches(exam, view)
    with torch.no_grad(), view.open_tap(None) as tap:
        view(mixed.images)
    answer = QUESTION.ask(exam)
    rows = answer["tables"]["blocks"]
    assert [row["block"] for row in rows] == [0, 1, 2]

    weights = [float(weight) for weight in mixed.source_weight]
    carried = [[weights[b]] * prefix + [float(s) for s in mixed.is_source[b]] for b in range(5)]
    for block, row in enumerate(rows):
        matrices = tap.probabilities(block).mean(dim=1).tolist()
        spread, least, greatest, drift, along = [], [], [], [], []
        for b in range(5):
            p = looped_presence(matrices[b], prefix)
            assert sum(p) == pytest.approx(24)
            spread.append((sum((value - 1) ** 2 for value in p) / 24) ** 0.5)
            least.append(min(p))
            greatest.append(max(p))
            on_source = sum(value for value, source in zip(p, mixed.is_source[b].tolist(), strict=True) if source)
            drift.append(abs(on_source / 24 - weights[b]))
            old = carried[b]
            carried[b] = [
                (own + sum(a * value for a, value in zip(line, old, strict=True))) / 2
                for own, line in zip(old, matrices[b], strict=True)
            ]
            along.append(abs(sum(carried[b][prefix:]) / 24 - weights[b]))
        for name, values in (
            ("spread of presence", spread),
            ("least presence", least),
            ("greatest presence", greatest),
            ("drift of the mixing ratio", drift),
            ("drift carried along", along),
        ):
            assert row[name] == pytest.approx(sum(values) / 5, rel=1e-3, abs=1e-6)

    label_drift = sum(abs(carried[b][0] - weights[b]) for b in range(5)) / 5  # the class token is read
    assert answer["values"] == {
        "mean spread of presence": pytest.approx(sum(row["spread of presence"] for row in rows) / 3),
        "largest drift of the mixing ratio": max(row["drift of the mixing ratio"] for row in rows),
        "drift of the label the classifier reads": pytest.approx(label_drift, rel=1e-3),
    }


@pytest.mark.parametrize("name", ["deit_distilled", "cait", "siglip", "vit_prr", "swin_padded", "ca_swin", "pvt"])
def test_the_label_is_the_one_that_tl_align_trains_with(name):
    exam = exam_of(build(name), FAMILIES[name].size)
    view = exam.subject.view
    (mixed,) = mixed_batches(exam, view)
    batch = MixedBatch(
        mixed.images,
        torch.zeros(5),
        mixed.source_weight,
        mixed.source_mask,
        Paste(torch.zeros(5), torch.zeros(5, 4)),
    )
    with torch.no_grad():
        _, labelled = AlignedLabel()(view, batch, view, None)
    found = fluctuation(view, mixed)
    assert torch.allclose(found.readout, labelled.source_weight, atol=1e-5)
    assert len(found.blocks) == len(QUESTION.ask(exam)["tables"]["blocks"]) == len(view.image_blocks)


def test_nothing_fluctuates_where_attention_is_uniform(make_vit):
    model = make_vit()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.zero_()
    answer = QUESTION.ask(exam_of(model, (16, 24)))
    for row in answer["tables"]["blocks"]:
        assert row["spread of presence"] == pytest.approx(0, abs=1e-5)
        assert row["least presence"] == pytest.approx(1, abs=1e-5)
        assert row["greatest presence"] == pytest.approx(1, abs=1e-5)
    assert list(answer["values"].values()) == [pytest.approx(0, abs=1e-5)] * 3


def test_a_hand_computed_block():
    presence = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    found = presence_measures(presence, torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([0.5]))
    assert found[:, 0].tolist() == [pytest.approx(0.5**0.5), 0.0, 2.0, 0.25]


def test_does_not_depend_on_the_batch_size(make_vit):
    model = make_vit()
    first, second = (QUESTION.ask(exam_of(model, (16, 24), batch_size=size))["values"] for size in (2, 5))
    assert first == {name: pytest.approx(value, rel=1e-4) for name, value in second.items()}


def test_blocks_of_one_query_are_left_out():
    answer = QUESTION.ask(exam_of(build("cait"), FAMILIES["cait"].size))
    assert [row["block"] for row in answer["tables"]["blocks"]] == [0, 1]
    assert any(
        note.startswith("2 attention blocks of one query, at the end, have no line") for note in answer["notes"]
    )


def test_missing_says_why():
    reason = QUESTION.missing(exam_of(build("xcit"), FAMILIES["xcit"].size))
    assert "mixes channels, not tokens" in reason
    assert "class_blocks_only" not in reason
    assert "Conv2d" in QUESTION.missing(exam_of(torch.nn.Conv2d(3, 2, 1), (8, 8)))
    assert QUESTION.missing(exam_of(tiny_vit(), (16, 24))) is None
