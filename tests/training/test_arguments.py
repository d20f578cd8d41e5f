import jsonargparse
import pytest

from attnmix.training.arguments import (
    add_recipe_arguments,
    parse_over_recipe,
    recipe_from_arguments,
    show_recipe_values,
)
from attnmix.training.reading import load_recipe, recipe_defaults


def parser_of(**options):
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    add_recipe_arguments(parser, **options)
    return parser


def typed(*words, **options):
    return recipe_from_arguments(parse_over_recipe(parser_of(**options), words))


def same(first, second):
    """Equal values, a pair typed as a list or a tuple."""
    return recipe_defaults(first) == recipe_defaults(second)


@pytest.mark.parametrize("name", ["quickstart", "deit-small+transmix"])
def test_nothing_typed_is_the_recipe(name):
    assert same(typed(name), load_recipe(name))


def test_what_is_typed_lies_over_recipe_and_overlay():
    recipe = typed("deit-small+transmix", "--lr=3", "--schedule.min_lr=0", "--method_options.mixup_prob=0.25")
    expected = {"lr": 3.0, "schedule": {"min_lr": 0.0}, "method_options": {"mixup_prob": 0.25}}
    assert same(recipe, load_recipe("deit-small+transmix", **expected))
    assert recipe.schedule.warmup_epochs == 20


def test_a_method_typed_in_place_of_the_recipes_leaves_its_options():
    assert typed("deit-small", "--method=none").method_options == {}
    assert typed("deit-small", "--method=cutmix").method_options == {"mixup_prob": 0.5}
    recipe = typed("deit-small", "--method=smmix", "--method_options.fine=false")
    assert recipe.method_options == {"fine": False}


def test_data_typed_in_place_of_the_recipes_leave_its_options():
    assert typed("cct-cifar10", "--data=images").data_options == {}
    recipe = typed("cct-cifar10", "--data=images", "--data_options.class_map=a.txt", "--method=none")
    assert (recipe.data_options, recipe.method_options) == ({"class_map": "a.txt"}, {})


def test_skipped_keys_come_from_the_recipe():
    parser = parser_of(skip=("method", "seed"))
    recipe = recipe_from_arguments(parse_over_recipe(parser, ["deit-small+smmix", "--lr=1"]), seed=3)
    assert same(recipe, load_recipe("deit-small+smmix", lr=1.0, seed=3))


def test_help_shows_the_merged_values_and_explains_the_plus():
    parser = parser_of()
    show_recipe_values(parser, load_recipe("deit-small+transmix"))
    text = " ".join(parser.format_help().split())
    for shown in (
        "default: transmix",
        "default: 20",
        "default: {'mixup_prob': 0.5}",
        "default: deit_small_patch16_224",
    ):
        assert shown in text
    assert "+OVERLAY behind it changes what a method's paper changes, as in deit-small+transmix" in text
