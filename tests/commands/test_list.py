import pytest

import attnmix
from attnmix import cli
from attnmix.training import known_overlays, known_recipes


def listed(capsys, *words):
    assert cli.main(["list", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_methods_come_with_their_first_line(capsys):
    lines = [line for line in listed(capsys, "methods") if line[2] != " "]
    assert [line.split()[0] for line in lines] == list(attnmix.METHODS)
    for line, kind in zip(lines, attnmix.METHODS.values(), strict=True):
        assert line.endswith(kind.__doc__.partition("\n")[0])


def test_methods_come_with_their_options_and_defaults(capsys):
    text = " ".join(" ".join(listed(capsys, "methods", "s*")).split())
    assert "side_ratio=(0.25, 0.75), side_law='ratio'" in text
    assert "side_ratio" not in " ".join(listed(capsys, "methods", "m*"))


@pytest.mark.parametrize(
    ("what", "name", "text"),
    [
        ("methods", "tokenmixup", "tau: a sample is easy if"),
        ("methods", "tl_align", "boxes in whole patches of every size"),
        ("recipes", "deit-small", "model: deit_small_patch16_224"),
        ("recipes", "+transmix", "method: transmix"),
        ("tables", "smmix-table-a4", "{label: random → corr"),
    ],
)
def test_a_full_name_shows_all_that_is_known_of_it(capsys, what, name, text):
    assert text in "\n".join(listed(capsys, what, name))


def test_tables_come_with_their_first_line(capsys):
    assert any("smmix-table-7 " in line and "DeiT-S" in line for line in listed(capsys, "tables"))


def test_recipes_come_with_their_first_line(capsys):
    lines = listed(capsys, "recipes")
    overlays = [f"+{name}" for name in known_overlays()]
    assert [line.split()[0] for line in lines] == [*known_recipes(), *overlays]
    assert any("Digits in scenes: a small ViT" in line for line in lines)
    assert any("SMMix as its paper trains it" in line for line in lines)


def test_data(capsys):
    text = "\n".join(listed(capsys, "data"))
    assert "digits-in-scenes  embedded" in text


def test_models_with_a_filter(capsys):
    names = [line.strip() for line in listed(capsys, "models", "deit_tiny*")]
    assert "deit_tiny_patch16_224" in names
    assert all(name.startswith("deit_tiny") for name in names)
    assert len(listed(capsys, "models")) > 200


def test_everything_but_models_when_nothing_is_named(capsys):
    lines = listed(capsys)
    assert [line for line in lines if not line.startswith(" ")] == [
        "methods:",
        "recipes:",
        "tables:",
        "data:",
        "questions:",
    ]


def test_wrong_words(capsys):
    assert cli.main(["list", "method"]) == 2
    assert "methods" in capsys.readouterr().err
    assert cli.main(["list", "models", "resnet*"]) == 2
    assert "no models match 'resnet*'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "name"), [("fold*", "folder"), ("quickstar?", "quickstart"), ("+smm*", "+smmix")]
)
def test_a_filter_keeps_what_matches(capsys, pattern, name):
    assert [line.split()[0] for line in listed(capsys, "recipes", pattern)] == [name]
