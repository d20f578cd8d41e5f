"""A recipe on the command line: an option for each of its keys, its values under what was typed."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jsonargparse

from attnmix.training.reading import OWNERS, load_recipe, recipe_defaults, recipe_from_values, recipe_groups
from attnmix.training.recipe import Recipe

__all__ = ["add_recipe_arguments", "parse_over_recipe", "recipe_from_arguments", "show_recipe_values"]


def add_recipe_arguments(parser: jsonargparse.ArgumentParser, *, skip: Iterable[str] = ()) -> None:
    """Add the argument RECIPE and an option for every key of a recipe but those in `skip`.

    `parse_over_recipe` lays the recipe's values under what was typed; `recipe_from_arguments` gives them back.
    """
    parser.add_argument(
        "recipe",
        help="a recipe's name (`attnmix list recipes`) or a YAML file; +OVERLAY behind it changes what a "
        "method's paper changes, as in deit-small+transmix",
    )
    parser.add_class_arguments(Recipe, skip=set(skip))


def show_recipe_values(parser: jsonargparse.ArgumentParser, recipe: Recipe) -> None:
    """Make the recipe's values the parser's defaults: those of its keys that the parser takes."""
    known = {action.dest for action in parser._actions}
    defaults = recipe_defaults(recipe)
    parser.set_defaults({name: value for name, value in defaults.items() if name in known})


def parse_over_recipe(parser: jsonargparse.ArgumentParser, words: Sequence[str]) -> jsonargparse.Namespace:
    """Parse `words` over the values of the recipe that they name.

    A method or data set typed in place of the recipe's takes none of that one's options, as in `load_recipe`.

    Raises:
        ValueError: what `load_recipe` finds wrong.
    """
    recipe = load_recipe(parser.parse_args(words).recipe)
    show_recipe_values(parser, recipe)
    arguments = parser.parse_args(words)
    typed = {owner: arguments[owner] for owner in OWNERS if owner in arguments}
    if all(value == getattr(recipe, owner) for owner, value in typed.items()):
        return arguments
    show_recipe_values(parser, load_recipe(arguments.recipe, **typed))
    return parser.parse_args(words)


def recipe_from_arguments(arguments: jsonargparse.Namespace, **overrides: Any) -> Recipe:
    """Return the recipe that was typed; keys skipped on the command line come from the recipe's file.

    Raises:
        ValueError: for values out of range.
    """
    base = load_recipe(arguments.recipe)
    values = {f.name: getattr(base, f.name) for f in dataclasses.fields(Recipe)}
    values.update({name: arguments[name] for name in values if name in arguments})
    for name in recipe_groups():
        values[name] = dict(vars(values[name]))
    return recipe_from_values({**values, **overrides})
