import inspect

import pytest

import attnmix
from attnmix.methods import Choice, method_options

SHARED = {
    "smoothing",
    "mixup_prob",
    "mixup_alpha",
    "cutmix_alpha",
    "prob",
    "mode",
    "pairing",
    "block",
    "seed",
}


@pytest.mark.parametrize("name", attnmix.METHODS)
def test_every_method_is_made_by_name(name):
    method = attnmix.create_method(name, num_classes=3)
    assert type(method) is attnmix.METHODS[name]
    assert method.num_classes == 3
    assert inspect.getdoc(type(method)).count("Args:") == 1


def test_options_reach_the_method_and_its_bases():
    method = attnmix.create_method("transmix", num_classes=3, attention_share=1.0, cutmix_alpha=2.0, seed=7)
    assert method.label.attention_share == 1.0
    assert method.sampler.cutmix_alpha == 2.0
    assert method.generator.initial_seed() == 7
    assert set(method_options("transmix")) >= SHARED
    assert "num_classes" not in method_options("transmix")
    assert method_options("smmix")["mixup_prob"].default == 0.5
    assert method_options("cutmix")["mixup_prob"].default == 0.0


def test_options_of_a_base_count_with_it():
    assert method_options("tokenmixup")["mixup_prob"].default == 0.5
    assert "attention_share" not in method_options("tokenmixup")
    assert "attention_share" in method_options("tokenmixup", {"base": "transmix"})
    method = attnmix.create_method("tokenmixup", num_classes=3, base="mixup+transmix", attention_share=1.0)
    assert method.base.methods[1].label.attention_share == 1.0
    with pytest.raises(ValueError, match='tokenmixup has no option "attention_share"'):
        attnmix.create_method("tokenmixup", num_classes=3, attention_share=1.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("smix", {}, 'no method "smix"; did you mean "smmix"\\? Known: none, mixup'),
        ("cutmix+transmx", {}, 'no method "transmx"; did you mean "transmix"'),
        ("cutmix", {"mixup_porb": 0.5}, 'cutmix has no option "mixup_porb"; did you mean "mixup_prob"'),
        ("none", {"mixup_prob": 0.5}, 'none has no option "mixup_prob"'),
        ("smmix", {"attention_share": 1.0}, 'smmix has no option "attention_share"'),
        ("cutmix", {"num_classes": 0}, "num_classes is 0"),
        ("cutmix", {"smoothing": 1.0}, "smoothing is 1.0"),
        ("cutmix", {"prob": "half"}, "cutmix does not work with the options {'prob': 'half'}"),
        ("smmix", {"side_ratio": 0.5}, "smmix does not work with the options {'side_ratio': 0.5}"),
        ("cutmix", {"seed": "a"}, "seed is 'a', but must be a whole number"),
    ],
)
def test_unknown_names_and_options_name_the_nearest(name, options, message):
    with pytest.raises(ValueError, match=message):
        attnmix.create_method(name, **{"num_classes": 3, **options})


def test_a_plus_makes_a_choice_and_shares_the_options_out():
    method = attnmix.create_method("mixup+cutmix", num_classes=3, cutmix_alpha=0.5, mixup_alpha=0.2, seed=3)
    assert isinstance(method, Choice)
    mixup, cutmix = method.methods
    assert mixup.sampler.mixup_alpha == cutmix.sampler.mixup_alpha == 0.2
    assert cutmix.sampler.cutmix_alpha == 0.5
    assert method.shares["blend"] == 0.5


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [
        ("none", {}, 0), ("mixup", {}, 1), ("mixup", {"prob": 0.5}, 0.5), ("cutmix", {}, 0),
        ("cutmix", {"mixup_prob": 0.5, "prob": 0.5}, 0.25), ("transmix", {}, 0.5), ("smmix", {}, 0.5),
        ("tl-align", {}, 0.5), ("tokenmixup", {}, 0.5), ("tokenmixup", {"base": "none"}, 0),
    ],
)  # fmt: skip
def test_shares_say_how_often_mixup_is_drawn(name, options, share):
    assert attnmix.create_method(name, num_classes=3, **options).shares["blend"] == share
