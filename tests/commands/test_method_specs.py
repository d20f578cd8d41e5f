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


def test_brackets_and_exponents_are_values():
    first, second = parse_methods("smmix:side_ratio=[0.5, 0.5],cutmix:cutmix_alpha=1e-1")
    assert first.options == {"side_ratio": [0.5, 0.5]}
    assert second.options == {"cutmix_alpha": 0.1}


def test_shared_options_go_to_the_methods_that_have_them_and_into_no_label():
    none, cutmix, smmix = parse_methods("none,cutmix,smmix:mixup_prob=1", shared={"mixup_prob": 0.5})
    assert none.options == {}
    assert cutmix.options == {"mixup_prob": 0.5}
    assert cutmix.label == "cutmix"
    assert smmix.options == {"mixup_prob": 1}
    with pytest.raises(ValueError, match='no method here has the option "mixup_prob"'):
        parse_methods("none,mixup", shared={"mixup_prob": 0.5})


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
        ("cutmix:seed=1", "all methods take the seed of the command"),
        ("smmix:side_ratio=[0.5", "is no value"),
        ("cutmix:prob=half", "cutmix does not work with the options"),
    ],
)
def test_wrong_lists_are_named(typed, message):
    with pytest.raises(ValueError, match=message):
        parse_methods(typed)


def test_a_teacher_that_is_not_named_can_be_given():
    plain, named, on_top, cutmix = parse_methods("tokenmix,tokenmix:teacher=x,tokenmixup:base=relabel,cutmix")
    assert [spec.missing_teachers() for spec in (plain, named, on_top, cutmix)] == [{"teacher"}, set()] * 2
    assert [spec.needs_label_maps for spec in (plain, named, on_top, cutmix)] == [True, False] * 2
    assert plain.taught_by("folder").options == {"teacher": "folder"}
    assert plain.taught_by("folder").label == "tokenmix"
    assert named.taught_by("folder").options == {"teacher": "x"}
    assert on_top.taught_by("folder").options == {"base": "relabel", "teacher": "folder"}
    assert cutmix.taught_by("folder") is cutmix
    both, unread = parse_methods("attentivemix+relabel,tokenmix:target=area")
    assert both.taught_by("folder").options == {"provider": "folder", "teacher": "folder"}
    assert both.taught_by("folder", maps=True).options == {"provider": "folder"}
    assert unread.missing_teachers() == set()  # it looks at no teacher
