"""List what can be named: methods, recipes, tables of the papers, models, data, questions."""

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from attnmix._nearest import nearest
from attnmix.commands.ablations import known_presets, preset_title
from attnmix.training.reading import known_overlays, known_recipes

if TYPE_CHECKING:
    from attnmix.methods import MixMethod

EXAMPLES = """
examples:
  attnmix list                       # everything but models
  attnmix list methods               # papers, costs and needs of the methods
  attnmix list methods smmix         # a method whole: what each option means
  attnmix list recipes deit-small    # a recipe whole, as a file to start from
  attnmix list tables smmix-table-7  # rows of a table, for attnmix ablate
  attnmix list recipes '+*'          # overlays, as in: attnmix train deit-small+transmix
  attnmix list questions             # what attnmix evaluate asks
  attnmix list models                # timm's vision transformers
  attnmix list models 'deit*'        # those that match
"""

# timm's families of vision transformers, as patterns of timm.list_models.
MODELS = (
    *("vit_*", "deit_*", "deit3_*", "cait_*", "xcit_*", "beit*", "eva*", "flexivit_*", "pvt_*", "swin_*"),
    *("ca_swin_*", "cct_*"),
)
NOT_YET = ("*_resnet*", "*_r26*", "*_r50*")  # other layouts of tokens


def add_arguments(parser: ArgumentParser) -> None:
    """Add what to list and a filter."""
    kinds = ["methods", "recipes", "tables", "models", "data", "questions"]
    parser.add_argument("what", nargs="?", choices=kinds, help="what to list; everything but models if left out")
    help_text = "only names that match this pattern, as 'deit*'; a full name shows all that is known of it"
    parser.add_argument("filter", nargs="?", help=help_text)
    parser.add_argument("--markdown", action="store_true", help="the table of methods as the README has it")


def run(arguments: Namespace) -> int:
    """Print the lists."""
    from fnmatch import fnmatch

    if arguments.markdown and arguments.what != "methods":
        raise ValueError("--markdown prints the table of methods: attnmix list methods --markdown")
    whole = _whole(arguments.what, arguments.filter)
    if whole is not None:
        print(whole.rstrip())
        return 0
    listings = {
        "methods": _methods,
        "recipes": _recipes,
        "tables": _tables,
        "data": _data,
        "models": _models,
        "questions": _questions,
    }
    if arguments.markdown:
        from attnmix.commands.method_table import as_markdown, method_rows

        print(as_markdown(method_rows()))
        return 0
    kinds = [arguments.what] if arguments.what else [kind for kind in listings if kind != "models"]
    for kind in kinds:
        rows = [row for row in listings[kind]() if arguments.filter is None or fnmatch(row[0], arguments.filter)]
        if not rows:
            near = nearest(arguments.filter, [name for name, _ in listings[kind]()])
            raise ValueError(f"no {kind} match {arguments.filter!r}{near}")
        if len(kinds) > 1:
            print(f"{kind}:")
        width = max(len(name) for name, _ in rows)
        for name, line in rows:
            first, *more = line.split("\n")
            print(f"  {name:{width}}  {first}".rstrip())
            print(textwrap.indent("\n".join(more), " " * (width + 6)) + "\n" if more else "", end="")
    return 0


def _whole(what: str | None, name: str | None) -> str | None:
    """Everything there is to read of one method, recipe, overlay or table; None for any other name."""
    if what == "methods":
        import attnmix

        kind = attnmix.METHODS.get(str(name).replace("_", "-"))
        return None if kind is None else f"{inspect.getdoc(kind)}\n\n{_method_facts(str(name), kind)}"
    files = {"recipes": known_recipes() | _overlay_files(), "tables": known_presets()}.get(what or "", {})
    path = files.get(str(name))
    return None if path is None else path.read_text(encoding="utf-8")


def _methods() -> Iterator[tuple[str, str]]:
    from attnmix.commands.method_table import method_rows

    for name, paper, images, labels, cost, needs in method_rows():
        lines = [f"{images}; labels {labels}", f"costs {_or_nothing(cost)}; needs {_or_nothing(needs)}"]
        filled = [textwrap.fill(line.replace("`", ""), 96, subsequent_indent="  ") for line in lines]
        yield name, "\n".join([paper, *filled])


def _or_nothing(cell: str) -> str:
    return "nothing" if cell == "-" else cell


def _method_facts(name: str, kind: "type[MixMethod]") -> str:
    from attnmix.methods import method_options

    options = ", ".join(f"{option}={value.default!r}" for option, value in method_options(name).items())
    about = kind.about
    facts = {"Paper": about.paper, "Extra cost of a step": about.cost, "Needs": ", ".join(about.needs) or "-"}
    lines = [f"{fact}: {text}" for fact, text in facts.items()]
    return "\n".join([*lines, textwrap.fill(f"Defaults: {options}", 96)])


def _recipes() -> Iterator[tuple[str, str]]:
    for name, path in (known_recipes() | _overlay_files()).items():
        yield name, path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


def _overlay_files() -> dict[str, Path]:
    return {f"+{name}": path for name, path in known_overlays().items()}  # as they are typed


def _tables() -> Iterator[tuple[str, str]]:
    yield from ((name, preset_title(path)) for name, path in known_presets().items())


def _data() -> Iterator[tuple[str, str]]:
    from attnmix.data import known_data

    yield from known_data().items()


def _questions() -> Iterator[tuple[str, str]]:
    from attnmix.evaluation.questions import QUESTIONS

    yield from ((name, question.about) for name, question in QUESTIONS.items())


def _models() -> Iterator[tuple[str, str]]:
    import timm

    yield from ((name, "") for name in timm.list_models(list(MODELS), exclude_filters=list(NOT_YET)))
