import os
import sys
from pathlib import Path

import pytest

import attnmix
from attnmix import cli
from attnmix.training import known_overlays, known_recipes


def listed(capsys, *words):
    assert cli.main(["list", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_method_is_listed_with_paper_cost_and_needs(capsys):
    lines = listed(capsys, "methods")
    starts = [number for number, line in enumerate(lines) if line[2] != " "]
    blocks = [" ".join(" ".join(lines[i:j]).split()) for i, j in zip(starts, [*starts[1:], None], strict=True)]
    assert [block.split()[0] for block in blocks] == [*attnmix.METHODS, "a+b"]
    for block, kind in zip(blocks, attnmix.METHODS.values(), strict=False):
        assert kind.about.paper in block
        assert f"costs {kind.about.cost}".replace("`", "").replace("costs -", "costs nothing") in block
        assert f"needs {', '.join(kind.about.needs) or 'nothing'}".replace("`", "") in block


def test_the_readme_has_the_same_table(capsys):
    readme = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    assert "\n".join(listed(capsys, "methods", "--markdown")) in readme
    assert cli.main(["list", "models", "--markdown"]) == 2
    assert "attnmix list methods --markdown" in capsys.readouterr().err


def test_a_method_comes_with_its_options_and_defaults(capsys):
    text = " ".join(" ".join(listed(capsys, "methods", "smmix")).split())
    assert "side_ratio=(0.25, 0.75), side_law='ratio'" in text
    assert "Paper: Chen et al., ICCV 2023 Extra cost of a step: 1 forward" in text
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
    assert cli.main(["list", "methods", "puzzlemx"]) == 2
    assert "no methods match 'puzzlemx'; did you mean 'puzzlemix'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "name"), [("fold*", "folder"), ("quickstar?", "quickstart"), ("+smm*", "+smmix")]
)
def test_a_filter_keeps_what_matches(capsys, pattern, name):
    assert [line.split()[0] for line in listed(capsys, "recipes", pattern)] == [name]


def test_a_reader_that_leaves_early_ends_the_command_in_silence(monkeypatch, capfd):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert cli.main(["list", "methods"]) == 141
    assert capfd.readouterr().err == ""
