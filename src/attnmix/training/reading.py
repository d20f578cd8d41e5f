"""Recipes as files: found by name, laid over each other, checked, read and written.

`deit-small+transmix` is the recipe `deit-small` under the overlay `transmix`: a file of the few keys in which a
method's paper departs from the model's recipe. What is typed or given as `overrides` lies on top of both.
"""

import dataclasses
import functools
import os
import re
from argparse import ArgumentError
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import jsonargparse
import yaml

from attnmix._errors import plain_message
from attnmix._nearest import nearest
from attnmix.training.plain_yaml import check_plain, load_plain, shown
from attnmix.training.recipe import Recipe
from attnmix.training.result import write_text

__all__ = [
    "OWNERS",
    "known_overlays",
    "known_recipes",
    "load_recipe",
    "nearest",
    "recipe_defaults",
    "recipe_files",
    "recipe_from_saved",
    "recipe_from_values",
    "recipe_groups",
    "save_recipe",
]

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
OVERLAYS = RECIPES / "overlays"

LONGEST_WORD = 1024  # a path's, say

# What has options of its own, which nothing else of its kind may know.
OWNERS = ("method", "data")

# Help texts are the strings below each field.
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


# ------------------------------------------------------------------ names


def known_recipes() -> dict[str, Path]:
    """Return the packaged recipes: name -> file."""
    return _by_name(RECIPES)


def known_overlays() -> dict[str, Path]:
    """Return the packaged overlays: name -> file."""
    return _by_name(OVERLAYS)


def _by_name(folder: Path) -> dict[str, Path]:
    files = {path.stem: path for path in folder.glob("*.yaml")}
    return {name: files[name] for name in sorted(files)}


def recipe_files(recipe: str | os.PathLike[str]) -> list[Path]:
    """Return the files that `recipe` names, the lowest first: RECIPE or RECIPE+OVERLAY+...

    RECIPE is a packaged recipe's name or a path, in which a + is allowed too; an OVERLAY is a name.

    Raises:
        ValueError: unknown recipe or overlay, naming the nearest; an overlay without a recipe under it.
    """
    words = str(recipe).split("+")
    recipes, overlays = known_recipes(), known_overlays()
    for count in range(len(words), 0, -1):  # the longest first: a path may hold a +
        base = "+".join(words[:count])
        path = recipes.get(base, Path(base))
        if base and path.is_file():
            return [path, *(_overlay(word, overlays) for word in words[count:])]
    if words[0] in overlays or not words[0]:
        name = words[0] or next((word for word in words if word), "transmix")
        raise ValueError(
            f"{str(recipe)!r} names no recipe: an overlay changes a few keys of one, as in deit-small+{name}"
        )
    if "-table-" in words[0]:
        raise ValueError(f"{words[0]!r} is no recipe but a table: attnmix ablate {words[0]} RECIPE --out DIR")
    raise ValueError(
        f"unknown recipe {words[0]!r}{nearest(words[0], recipes)}; known: {', '.join(recipes)}, or a path to a "
        f"YAML file; an overlay goes behind a +, as in deit-small+transmix"
    )


def _overlay(name: str, known: Mapping[str, Path]) -> Path:
    if not name:
        raise ValueError(f"a + without an overlay behind it; known: {', '.join(known)}")
    if name not in known:
        hint = f"; {name!r} is a recipe, and one is enough" if name in known_recipes() else nearest(name, known)
        raise ValueError(f"unknown overlay {name!r}{hint}; known: {', '.join(known)}")
    return known[name]


# ------------------------------------------------------------------ reading and writing


def load_recipe(recipe: str | os.PathLike[str], **overrides: Any) -> Recipe:
    """Read a recipe: a packaged name or a path, overlays behind it (`+`), and `overrides` on top.

    Dictionaries are merged key by key. `method_options` and `data_options` stay with the method and the data they
    were written for: a layer that names another starts from none.

    Raises:
        ValueError: for an unknown recipe, overlay or key, naming the nearest, and for a wrong type or value.
    """
    base, *overlays = recipe_files(recipe)
    values, _ = _read(base)
    for path in overlays:
        typed, keys = _read(path)
        values = _lay(values, _only(typed, keys))
    if overrides:
        _check_keys(overrides, Recipe, where="")
        values = _checked(_lay(values, _plain(overrides)), where=f" in {base}")
    return recipe_from_values(values)


def recipe_from_saved(values: Mapping[str, Any], *, where: str) -> Recipe:
    """Make the recipe of what `recipe_defaults` gave once, and a file has kept since.

    Raises:
        ValueError: no such values; names `where`.
    """
    nested: dict[str, Any] = {}
    for key, value in values.items():
        group, dot, name = str(key).partition(".")
        if dot:
            nested.setdefault(group, {})[name] = value
        else:
            nested[group] = value
    try:
        check_plain(nested)
    except ValueError as error:
        raise ValueError(f"the recipe{where} holds {error}") from error
    _check_keys(nested, Recipe, where=where)
    for name in _open_groups():
        _check_words(nested.get(name), f"'{name}'{where}")
    return recipe_from_values(_checked(nested, where=where))


def save_recipe(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write the recipe with every key, as `load_recipe` reads it."""
    values = _plain(dataclasses.asdict(recipe))
    write_text(Path(path), yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def recipe_from_values(values: Mapping[str, Any]) -> Recipe:
    """Make the recipe of values whose groups are dictionaries.

    Raises:
        ValueError: for a value out of range.
    """
    kinds = recipe_groups()
    return Recipe(**{k: kinds[k](**v) if k in kinds else v for k, v in values.items()})


def recipe_defaults(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's values under their names on the command line, for `parser.set_defaults`."""
    defaults = _plain(dataclasses.asdict(recipe))
    for group in recipe_groups():
        defaults.update({f"{group}.{name}": value for name, value in defaults.pop(group).items()})
    return defaults


def recipe_groups(kind: type = Recipe) -> dict[str, type]:
    """Return the fields of a dataclass that are dataclasses themselves: name -> type."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if dataclasses.is_dataclass(hints[f.name])}


# ------------------------------------------------------------------ what lies between


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every value of a recipe by this file, types checked; and the file as it stands, for its keys."""
    try:
        written = load_plain(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid YAML for a recipe: {error}") from error
    if not isinstance(written, dict):
        raise ValueError(f"{path} must hold keys with values, as 'epochs: 30', not a {type(written).__name__}")
    _check_keys(written, Recipe, where=f" in {path}")
    for name in _open_groups():
        _check_words(written.get(name), f"'{name}' in {path}")
    return _checked(written, where=f" in {path}"), written


def _checked(values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """All values, typed by jsonargparse."""
    # jsonargparse would import a class that an option's value names, and read its strings as YAML
    options = {name: _plain(value) for name, value in values.items() if name in _open_groups()}
    others = {name: value for name, value in values.items() if name not in options}
    for name, value in options.items():
        if not isinstance(value, dict):
            raise ValueError(f"'{name}'{where} must hold keys with values. Got value: {shown(value)}")
    others = _unquoted(_plain(others), Recipe, where=where)
    try:
        parsed = _parser().parse_object(others)
    except (ArgumentError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{plain_message(error)[:500]}{where}") from error
    return {**parsed.as_dict(), **options}


@functools.cache
def _parser() -> jsonargparse.ArgumentParser:
    """Making it takes longer than anything it does."""
    jsonargparse.set_loader("recipe", load_plain, exceptions=(ValueError, yaml.YAMLError))
    parser = jsonargparse.ArgumentParser(exit_on_error=False, parser_mode="recipe")
    parser.add_class_arguments(Recipe)
    return parser


def _check_words(value: Any, where: str) -> None:
    """Refuse YAML in quotes among options: the command line would read it, and import a class that it names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_words(key, where)
            _check_words(item, where)
    elif isinstance(value, list):
        for item in value:
            _check_words(item, where)
    while isinstance(value, str) and value.strip():  # quotes in quotes
        try:
            found = load_plain(value)
        except ValueError:
            found = []
        if isinstance(found, (list, dict)):
            raise ValueError(f"{where} holds {shown(value)}, which is not a plain word: write it without quotes")
        if found == value:
            break
        value = found


def _unquoted(values: Mapping[str, Any], kind: type, *, where: str) -> dict[str, Any]:
    """A number in quotes is a number still; read here, as jsonargparse's YAML follows aliases of aliases."""
    hints, groups = get_type_hints(kind), recipe_groups(kind)

    def read(key: str, value: Any) -> Any:
        if key in groups:
            return _unquoted(value, groups[key], where=where) if isinstance(value, Mapping) else value
        if isinstance(value, list):
            return [read(key, item) for item in value]
        if not isinstance(value, str):
            return value
        if len(value) > LONGEST_WORD:
            raise ValueError(f"'{key}'{where} is {len(value)} characters long: {shown(value)}")
        if re.search(r"\bstr\b|Literal", str(hints[key])):
            return value
        try:
            found = load_plain(value)
        except ValueError:
            found = []
        if isinstance(found, (list, dict, type(None))):
            raise ValueError(f"'{key}'{where} must hold a number or a word. Got value: {shown(value)}")
        return value if isinstance(found, str) else found

    return {key: read(key, value) for key, value in values.items()}


@functools.cache
def _open_groups() -> tuple[str, ...]:
    """The keys whose keys are the model's, the data's or the method's to know."""
    return tuple(name for name, hint in get_type_hints(Recipe).items() if get_origin(hint) is dict)


def _only(values: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values whose keys are written, in groups too."""
    groups = recipe_groups()
    return {k: {n: values[k][n] for n in keys[k]} if k in groups else values[k] for k in keys}


def _lay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`; the options of a method or a data set that `above` replaces go with it."""
    replaced = [owner for owner in OWNERS if owner in above and _dashed(above[owner]) != _dashed(below[owner])]
    return _merge({**below, **{f"{owner}_options": {} for owner in replaced}}, above)


def _dashed(name: Any) -> str:
    return str(name).replace("_", "-")


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _plain(value: Any) -> Any:
    """Tuples as lists, so that plain YAML holds them."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _check_keys(values: Mapping[Any, Any], kind: type, *, where: str, prefix: str = "") -> None:
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    groups = recipe_groups(kind)
    for key, value in values.items():
        if key not in names:
            key = str(key)[:100]
            # Look in all groups too: `weight_decay` at the top is meant as `optimizer.weight_decay`.
            near = [prefix + n for n in names]
            near += [f"{g}.{f.name}" for g, k in groups.items() for f in dataclasses.fields(k)]
            same = [n for n in near if n.rpartition(".")[2] == key]
            hint = f"; did you mean {same[0]!r}?" if same else nearest(f"{prefix}{key}", near)
            raise ValueError(f"unknown recipe key '{prefix}{key}'{where}{hint}")
        if key in groups:
            if not isinstance(value, Mapping):
                raise ValueError(f"'{prefix}{key}'{where} must hold keys with values, not {shown(value)}")
            _check_keys(value, groups[key], where=where, prefix=f"{prefix}{key}.")
        elif value is None and type(None) not in get_args(hints[key]):  # jsonargparse takes it for anything
            raise ValueError(f"'{prefix}{key}'{where} has no value")
