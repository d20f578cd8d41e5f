"""List what can be named: methods, recipes, models, data."""

import textwrap
from collections.abc import Iterator

from jsonargparse import ArgumentParser, Namespace

from attnmix.training.reading import known_overlays, known_recipes

EXAMPLES = """
examples:
  attnmix list                       # methods, recipes and data
  attnmix list recipes '+*'          # overlays, as in: attnmix train deit-small+transmix
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
    kinds = ["methods", "recipes", "models", "data"]
    parser.add_argument("what", nargs="?", choices=kinds, help="what to list; everything but models if left out")
    parser.add_argument("filter", nargs="?", help="only names that match this pattern, as 'deit*'")


def run(arguments: Namespace) -> int:
    """Print the lists."""
    from fnmatch import fnmatch

    listings = {"methods": _methods, "recipes": _recipes, "data": _data, "models": _models}
    kinds = [arguments.what] if arguments.what else ["methods", "recipes", "data"]
    for kind in kinds:
        rows = [row for row in listings[kind]() if arguments.filter is None or fnmatch(row[0], arguments.filter)]
        if not rows:
            raise ValueError(f"no {kind} match {arguments.filter!r}")
        if len(kinds) > 1:
            print(f"{kind}:")
        width = max(len(name) for name, _ in rows)
        for name, line in rows:
            first, *more = line.split("\n")
            print(f"  {name:{width}}  {first}".rstrip())
            print(textwrap.indent("\n".join(more), " " * (width + 6)) + "\n" if more else "", end="")
    return 0


def _methods() -> Iterator[tuple[str, str]]:
    import attnmix
    from attnmix.methods import method_options

    for name, kind in attnmix.METHODS.items():
        options = ", ".join(
            f"{option}={parameter.default!r}" for option, parameter in method_options(name).items()
        )
        yield name, (kind.__doc__ or "").strip().partition("\n")[0] + "\n" + textwrap.fill(options, 96)


def _recipes() -> Iterator[tuple[str, str]]:
    overlays = {f"+{name}": path for name, path in known_overlays().items()}  # as they are typed
    for name, path in {**known_recipes(), **overlays}.items():
        yield name, path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


def _data() -> Iterator[tuple[str, str]]:
    from attnmix.data import known_data

    yield from known_data().items()


def _models() -> Iterator[tuple[str, str]]:
    import timm

    yield from ((name, "") for name in timm.list_models(list(MODELS), exclude_filters=list(NOT_YET)))
