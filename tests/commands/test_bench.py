import importlib

import pytest

from attnmix.cli import main
from attnmix.commands import bench


@pytest.mark.parametrize("words", [["bench"], ["bench", "--help"], ["bench", "-h"]])
def test_help_lists_the_three_with_their_first_lines(capsys, words):
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: attnmix bench COMMAND")
    assert bench.__doc__.strip() in text
    assert "attnmix bench step --models" in text
    for name, module in bench.COMMANDS.items():
        first = importlib.import_module(module).__doc__.partition("\n")[0]
        assert any(line.split() == [name, *first.split()] for line in text.splitlines())


def test_the_groups_line_is_in_the_general_help(capsys):
    assert main([]) == 0
    assert f"  bench    {bench.__doc__.splitlines()[0]}" in capsys.readouterr().out


def test_a_wrong_word_below_the_group_names_the_nearest(capsys):
    assert main(["bench", "stpe"]) == 2
    assert (
        "unknown command 'bench stpe'; did you mean 'step'?; known: step, attention, data"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", bench.COMMANDS)
def test_each_has_help_and_checks_its_options(capsys, name):
    assert main(["bench", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: attnmix bench {name}")
    assert f"attnmix bench {name} " in text.partition("examples:")[2]
    assert main(["bench", name, "--devise", "cpu"]) == 2
    assert "unknown option '--devise'; did you mean '--device'" in capsys.readouterr().err


def test_one_that_takes_a_recipe_shows_its_values(capsys):
    assert main(["bench", "data", "quickstart", "--help"]) == 0
    assert "float, default: 0.002" in " ".join(capsys.readouterr().out.split())
