import pytest
import torch

from attnmix.attention import AttentionTap
from attnmix.benchmark.step_rows import ALL_ROWS, IDLE_TAP, StepRow, baseline_of, make_method, with_baseline
from attnmix.task import MixTask
from tests.conftest import NUM_CLASSES


def test_all_covers_the_papers_methods_and_the_parts_of_tokenmixup():
    papers = {"none", "mixup", "cutmix", "transmix", "smmix", "tl-align", "tokenmixup"}
    assert {row.method for row in ALL_ROWS} == {*papers, IDLE_TAP}
    assert len({row.label for row in ALL_ROWS}) == len(ALL_ROWS) == 11
    parts = [dict(row.options) for row in ALL_ROWS if row.method == "tokenmixup"]
    assert parts == [{"vertical": None}, {"horizontal": None}, {}]


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.label)
def test_rows_paste_at_every_step_unless_they_say_otherwise(row):
    kinds = row.kinds()
    shares = {"keep": 0.0, "blend": 0.0, "paste": 0.0}
    for kind in kinds:
        for name, share in make_method(kind, num_classes=2, seed=0).shares.items():
            shares[name] += kind.share * share
    said = {"none": (1, 0, 0), "mixup": (0, 1, 0), "smmix (mixup_prob=0.5)": (0, 0.5, 0.5)}
    assert tuple(shares.values()) == said.get(row.label, (0, 0, 1))


def test_tau_is_inf_unless_it_is_said():
    (kind,) = StepRow("a", "tokenmixup").kinds()
    assert kind.options["tau"] == float("inf")
    (kind,) = StepRow("a", "tokenmixup", {"tau": 0.1}).kinds()
    assert kind.options["tau"] == 0.1


def test_plain_cutmix_is_added_where_it_is_missing():
    smmix, half = StepRow("smmix", "smmix"), StepRow("half", "cutmix", {"mixup_prob": 0.5})
    rows = with_baseline([smmix, half])
    assert rows[1:] == [smmix, half]
    assert baseline_of(rows) is rows[0]
    assert with_baseline(ALL_ROWS) == list(ALL_ROWS)


def test_the_idle_tap_draws_as_cutmix_does_and_opens_a_tap(make_vit, monkeypatch):
    entered = []
    enter = AttentionTap.__enter__
    monkeypatch.setattr(AttentionTap, "__enter__", lambda tap: entered.append(1) or enter(tap))
    model, images, labels = make_vit(), torch.randn(2, 3, 16, 24), torch.tensor([0, 1])
    found = []
    for method in ("cutmix", IDLE_TAP):
        (kind,) = StepRow("a", method).kinds()
        found.append(MixTask(model, make_method(kind, num_classes=NUM_CLASSES, seed=3))(images, labels)["loss"])
        assert len(entered) == (method == IDLE_TAP)
    assert torch.equal(*found)
