"""The command `attnmix`: finds the command's file, lets jsonargparse read what was typed, runs it.

What a person can put right ends in one line on stderr and exit code 2; ATTNMIX_DEBUG=1 or --debug shows
where it came from.
"""

import argparse
import importlib
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jsonargparse

from attnmix._errors import plain_message
from attnmix._nearest import nearest
from attnmix.training.arguments import parse_over_recipe, show_recipe_values
from attnmix.training.reading import load_recipe

# A command is a module of attnmix.commands: see there. One that has COMMANDS of its own is a group of these.
COMMANDS = {
    "train": "attnmix.commands.train",
    "maps": "attnmix.commands.maps",
    "compare": "attnmix.commands.compare",
    "ablate": "attnmix.commands.ablate",
    "evaluate": "attnmix.commands.evaluate",
    "show": "attnmix.commands.show",
    "push": "attnmix.commands.push",
    "list": "attnmix.commands.list",
    "bench": "attnmix.commands.bench",
}
DESCRIPTION = "Attention-guided image mixing for vision transformers: train, compare, evaluate, look."
EXAMPLES = """
examples:
  attnmix train quickstart --method smmix --out runs/smmix
  attnmix list methods
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0 done, 2 wrong input, 130 interrupted, 141 no reader)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or bool(os.environ.get("ATTNMIX_DEBUG"))
    words = [word for word in words if word != "--debug"]
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except (ValueError, OSError, ArithmeticError, MemoryError, argparse.ArgumentError) as error:
        if isinstance(error, BrokenPipeError) and hasattr(select, "poll") and _nobody_reads():
            return 128 + 13  # SIGPIPE's number, as other programs end
        if debug:
            raise
        if _is_first_of_node() or not isinstance(error, _SAME_EVERYWHERE):
            print(f"attnmix: error: {plain_message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if _is_first_process():
            print("attnmix: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:  # argparse, after --help
        return stop.code if isinstance(stop.code, int) else 0


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has gone (`| head`); if so, what is left is thrown away."""
    asked = select.poll()
    asked.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in asked.poll(0)):
        return False
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # else Python complains at its end
    return True


# Wrong input, which every process of a node meets alike; a loss, memory or a disk may fail in one of them alone.
_SAME_EVERYWHERE = (ValueError, FileExistsError, FileNotFoundError, argparse.ArgumentError)


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _is_first_of_node() -> bool:
    return os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"


def _run(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        print(f"attnmix {importlib.import_module('attnmix').__version__}")
        return 0
    return _choose(words, COMMANDS, "attnmix", DESCRIPTION, EXAMPLES)


def _choose(words: list[str], commands: Mapping[str, str], prog: str, description: str, examples: str) -> int:
    """Run the command that the first word names; a group of commands looks at the next word."""
    if not words or words[0] in ("-h", "--help"):
        print(_help(commands, prog, description, examples))
        return 0
    name, *rest = words
    if name not in commands:
        typed = f"{prog} {name}".removeprefix("attnmix ")
        raise ValueError(f"unknown command {typed!r}{nearest(name, commands)}; known: {', '.join(commands)}")
    command = importlib.import_module(commands[name])
    prog = f"{prog} {name}"
    if hasattr(command, "COMMANDS"):
        return _choose(rest, command.COMMANDS, prog, command.__doc__ or "", command.EXAMPLES)
    return _run_one(command, prog, rest)


def _run_one(command: Any, prog: str, rest: list[str]) -> int:
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        description=command.__doc__,
        epilog=command.EXAMPLES,
        exit_on_error=False,
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
    )
    command.add_arguments(parser)
    _check_options(parser, rest)
    positionals = [action.dest for action in parser._actions if not action.option_strings]
    takes_recipe = "recipe" in positionals
    if takes_recipe and {"-h", "--help"} & set(rest):
        first = rest[: positionals.index("recipe") + 1]
        if len(first) > positionals.index("recipe") and not any(word.startswith("-") for word in first):
            show_recipe_values(parser, load_recipe(first[-1]))
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and not getattr(command, "IN_SEVERAL_PROCESSES", False) and not {"-h", "--help"} & set(rest):
        raise ValueError(f"{prog} runs in one process, not in {started}: start it without torchrun")
    return command.run(parse_over_recipe(parser, rest) if takes_recipe else parser.parse_args(rest))


# what lies below these is not ours to know
_OPEN = ("--model_options", "--data_options", "--method_options", "--teacher_options")


def _check_options(parser: jsonargparse.ArgumentParser, words: list[str]) -> None:
    """Unknown options end here, with the nearest known one; what method, model and data take, they check."""
    known = set(parser._option_string_actions)
    for word in words:
        option = word.partition("=")[0]
        if not option.startswith("--") or option == "--" or option in known:
            continue
        if option.rpartition(".")[0] in _OPEN:
            continue
        # Look among the last parts too: `--weight_decay` is meant as `--optimizer.weight_decay`.
        same = [name for name in known if name.rpartition(".")[2] == option.removeprefix("--").replace("-", "_")]
        hint = f"; did you mean '{same[0]}'?" if same else nearest(option, known)
        raise ValueError(f"unknown option '{option}'{hint}")


def _help(commands: Mapping[str, str], prog: str, description: str, examples: str) -> str:
    lines = [f"usage: {prog} COMMAND ...", "", description.strip(), "", "commands:"]
    width = max(8, *map(len, commands))
    for name, module in commands.items():
        first = (importlib.import_module(module).__doc__ or "").partition("\n")[0]
        lines.append(f"  {name:{width}} {first}")
    lines += ["", examples.strip(), ""]
    lines.append(f"`{prog} COMMAND --help` tells more; --debug shows where an error came from.")
    return "\n".join(lines)


class _HelpFormatter(jsonargparse.DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of descriptions and examples as written."""
