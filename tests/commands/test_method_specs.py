import pytest

import attnmix
from attnmix.commands.method_specs import MethodSpec, parse_methods


def test_methods_with_and_without_options():
    specs = parse_methods("none, cutmix:mixup_prob=0.5")
    assert specs[0] == MethodSpec("none")
    assert specs[1].options == {"mixup_prob": 0.5}
    assert specs[1].label == "cutmix (mixup_prob=0.5)"
    assert specs[1].folder == "cutmix-mixup_prob=0.5"


def test_several_options_keep_their_types():
    (spec,) = parse_methods("smmix:fine=false:block=2:side_law=integer")
    assert spec.options == {"fine": False, "block": 2, "side_law": "integer"}
    assert spec.label == "smmix (fine=False, block=2, side_law=integer)"


def test_all_is_every_method():
    assert [spec.name for spec in parse_methods("all")] == list(attnmix.METHODS)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("cutmx", 'no method "cutmx"; did you mean "cutmix"'),
        ("cutmix:mixup_pro=1", 'no option "mixup_pro"; did you mean "mixup_prob"'),
        ("cutmix:mixup_prob", '"mixup_prob" in "cutmix:mixup_prob": options are written name:option=value'),
        ("cutmix:mixup_prob=2", "mixup_prob is 2"),
        ("cutmix,none,cutmix", "cutmix is named twice"),
        (" , ", "no method named"),
    ],
)
def test_wrong_lists_are_named(typed, message):
    with pytest.raises(ValueError, match=message):
        parse_methods(typed)
