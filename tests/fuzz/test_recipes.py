import dataclasses
import sys
from typing import get_type_hints

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from attnmix.cli import main
from attnmix.training.plain_yaml import DEEPEST
from attnmix.training.reading import known_overlays, known_recipes, load_recipe, recipe_from_saved, recipe_groups
from attnmix.training.recipe import Recipe
from tests.fuzz.trying import attempt, fuzz, mangled, numbers, plain, words
from tests.fuzz.watching import CANARY

# each name stands for ten of the one before
LAUGHS = "[&a [x,x,x,x,x,x,x,x,x,x]" + "".join(
    f", &{name} [{','.join(['*' + before] * 10)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
LAUGHS += "]"
THING = f"{{class_path: {CANARY}.Thing, init_args: {{x: 1}}}}"
SNIPPETS = (
    *(
        "epochs: ",
        "optimizer: ",
        "model_options: ",
        "trackers: ",
        "lr: ",
        "<<: ",
        "? ",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
    ),
    *(
        "&a ",
        "*a",
        "!!python/object/apply:os.system ",
        "!!python/name:os.system ",
        "!!binary ",
        "!!set ",
        "!",
        "|\n",
    ),
    *(
        ">-\n",
        "'",
        '"',
        "\n",
        "\n  ",
        "#",
        "---\n",
        "...\n",
        "%YAML 9.9\n",
        "\t",
        "\ufeff",
        "\0",
        "null",
        "~",
        ".nan",
    ),
    *("1e999", "0x" + "f" * 40, "2001-99-99", "1:99:99", "yes", "=", ",", "\u2028", "\\", "class_path: " + CANARY),
)


def load(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return load_recipe(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: !!python/object/apply:os.system ['true']", "could not determine a constructor for the tag"),
        (f"model_options: {{z: {LAUGHS}}}", "an alias .*: write the value out"),
        (f"lr: '{LAUGHS}'", "'lr' in .* must hold a number or a word"),
        (f"epochs: {LAUGHS}", "an alias"),
        ("model_options: &a {z: *a}", "an alias"),
        (f"model_options: {{z: {'[' * 30_000}", f"more than {DEEPEST} levels"),
        (f"model_options: {{z: '{'[' * 90_000}'}}", "is not a plain word: write it without quotes"),  # a segfault
        (f"init: '{'[' * 90_000}'", "'init' in .* is 90000 characters long"),  # as well
        ("a" * 200_000, "200000 characters, and 100000 are the most"),
        (f"model_options: {{a: {THING}}}", "'class_path': a recipe names no code"),  # was imported
        (f"model_options: {{a: '{THING}'}}", "is not a plain word"),
        (f"model_options: {{a: \"'{THING}'\"}}", "is not a plain word"),
        ("epochs: 3\nepochs: 4", "'epochs' stands there twice"),
        ("optimizer: {opt: sgd, opt: lamb}", "'opt' stands there twice"),
        ("epochs: null", "'epochs' in .* has no value"),  # was a TypeError
        ("optimizer: {momentum: }", "'optimizer.momentum' in .* has no value"),
        ("method_options:", "'method_options' in .* has no value"),
        ("epochs: " + "9" * 5000, r"r.yaml is not valid YAML for a recipe: Exceeds the limit"),
        ("seed: " + "9" * 40, "a whole number of more than 64 bits"),
        ("model_options: {1: 2}", "the key 1, which is no word"),
        ("model_options: !!set {a, b}", "a set: want words, numbers, lists and mappings"),
        ("model: !!binary aGVsbG8=", "a bytes: want words"),
        ('model: "\\ud800"', "characters that no name has"),
        ('data: "a\\0b"', "characters that no name has"),
    ],
)
def test_hostile_recipes(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)
    assert len(attempt("recipes: hostile", lambda: load(tmp_path, text))[1]) < 700


def test_what_is_plain_is_read_as_before(tmp_path):
    recipe = load(tmp_path, "\ufeffmodel: 2001-01-01\nlr: 2e-3\nepochs: '3'\noptimizer: {betas: ['0.5', 0.9]}\n")
    assert (recipe.model, recipe.lr, recipe.epochs, recipe.optimizer.betas) == ("2001-01-01", 2e-3, 3, (0.5, 0.9))
    recipe = load(tmp_path, "method_options: {a: '3', b: 3e-1, c: [x, {d: null}]}\ninit: '3'\n")
    assert recipe.method_options == {"a": "3", "b": 0.3, "c": ["x", {"d": None}]}


def test_the_command_line_imports_nothing_either(tmp_path, monkeypatch, capsys):
    """It reads a recipe's values a second time, as jsonargparse's defaults."""
    monkeypatch.chdir(tmp_path)
    for value in (THING, f"'{THING}'", f"['{{class_path: {CANARY}.Thing}}']"):
        (tmp_path / "r.yaml").write_text(f"model_options: {{a: {value}}}\n")
        assert main(["train", "r.yaml", "--out", "run"]) == 2
        assert "attnmix: error: " in capsys.readouterr().err
    assert CANARY not in sys.modules


@fuzz(120)
@given(text=st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=5)), max_size=12).map("".join))
@example(text="epochs: 3\nmodel: =")
def test_any_text(tmp_path, text):
    found, _ = attempt("recipes: any text", lambda: load(tmp_path, text))
    assert found is None or isinstance(found, Recipe)


@fuzz(60)
@given(data=st.binary(max_size=60))
def test_any_bytes(tmp_path, data):
    attempt("recipes: any bytes", lambda: load(tmp_path, data))


SHIPPED = [path.read_bytes() for path in (*known_recipes().values(), *known_overlays().values())]


@fuzz(100)
@given(data=st.sampled_from(SHIPPED).flatmap(mangled))
def test_mangled_recipes_of_ours(tmp_path, data):
    attempt("recipes: mangled", lambda: load(tmp_path, data))


KEYS = [f"{group}.{name}" for group, kind in recipe_groups().items() for name in get_type_hints(kind)]
KEYS += [field.name for field in dataclasses.fields(Recipe)]


@fuzz(200)
@given(key=st.sampled_from(KEYS), value=plain)
def test_any_value_for_every_key(tmp_path, key, value):
    group, dot, name = key.partition(".")
    written = {group: {name: value}} if dot else {group: value}
    text = yaml.safe_dump(written, allow_unicode=False)
    found, _ = attempt("recipes: values of any kind", lambda: load(tmp_path, text))
    if found is not None:  # what is taken is of the right kind
        kinds = {
            "epochs": int,
            "lr": float,
            "model": str,
            "compile": bool,
            "model_options": dict,
            "trackers": list,
        }
        assert all(isinstance(getattr(found, name), kind) for name, kind in kinds.items())


@fuzz(100)
@given(key=st.one_of(words, st.sampled_from(KEYS)), value=st.one_of(plain, numbers))
def test_a_checkpoints_recipe(key, value):
    attempt("recipes: of a checkpoint", lambda: recipe_from_saved({key: value}, where=" in it"))


def test_a_checkpoints_recipe_may_be_a_bomb():
    value = ["x"]
    for _ in range(17):
        value = [value] * 10
    with pytest.raises(ValueError, match="holds more than 100000 values"):
        recipe_from_saved({"method_options": {"a": value}}, where=" in it")
    for _ in range(5):
        value = [value] * 10
    with pytest.raises(ValueError, match="levels of lists"):
        recipe_from_saved({"lr": value}, where=" in it")
