import pytest

from attnmix.benchmark.kinds import step_kinds
from attnmix.methods import METHODS, create_method


def parts(name, **options):
    return [(kind.share, kind.method, dict(kind.options)) for kind in step_kinds(name, options)]


def test_a_step_is_taken_apart_by_its_shares():
    assert parts("smmix", mixup_prob=0.25, fine=False) == [
        (0.25, "smmix", {"mixup_prob": 1.0, "prob": 1.0, "fine": False}),
        (0.75, "smmix", {"mixup_prob": 0.0, "prob": 1.0, "fine": False}),
    ]
    assert parts("cutmix", prob=0.5) == [
        (0.5, "cutmix", {"prob": 0.0}),
        (0.5, "cutmix", {"prob": 1.0, "mixup_prob": 0.0}),
    ]
    assert parts("none") == [(1.0, "none", {})]
    assert parts("mixup") == [(1.0, "mixup", {"prob": 1.0})]
    assert parts("smmix+none", mixup_prob=0.0) == [
        (0.5, "smmix", {"mixup_prob": 0.0, "prob": 1.0}),
        (0.5, "none", {}),
    ]


@pytest.mark.parametrize("name", METHODS)
def test_kinds_are_pure_and_their_shares_whole(name):
    kinds = step_kinds(name, {})
    assert sum(kind.share for kind in kinds) == pytest.approx(1)
    for kind in kinds:
        assert max(create_method(kind.method, num_classes=2, **kind.options).shares.values()) == 1


def test_what_cannot_be_taken_apart_stays_whole():
    assert parts("tokenmixup", base="mixup+cutmix") == [(1.0, "tokenmixup", {"base": "mixup+cutmix"})]


def test_alike_kinds_share_a_key_and_others_do_not():
    (plain,), (said,) = step_kinds("cutmix", {}), step_kinds("cutmix", {"prob": 1.0, "mixup_prob": 0.0})
    assert plain.key == said.key
    (other,) = step_kinds("cutmix", {"mode": "elem"})
    assert other.key != plain.key
    half = step_kinds("cutmix", {"mixup_prob": 0.5})
    assert [kind.key == plain.key for kind in half] == [False, True]


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match='cutmix has no option "porb"; did you mean "prob"'):
        step_kinds("cutmix", {"porb": 1.0})
