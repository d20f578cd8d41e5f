"""The papers' ablation tables as presets.

A preset is a YAML file of `attnmix.ablations`: a first comment line that says what the table asks, the heading of
its column, and a line for each row with the row's label, its options of the method, and the paper's number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnmix._nearest import nearest
from attnmix.training.plain_yaml import load_plain

PRESETS = Path(__file__).resolve().parent.parent / "ablations"
KEYS = ("column", "reference", "depth", "method", "options", "providers", "measured", "rows")
ROW_KEYS = ("label", "method", "options", "paper", "further", "reference")
BLOCKS = ("block", "horizontal", "vertical")  # options that count blocks, from 0


@dataclass(frozen=True)
class Row:
    """One row of a paper's table.

    Attributes:
        label: what the paper calls it.
        method: the method's name.
        own: the row's options of the method.
        common: options that all rows have unless others are typed.
        paper: the paper's number.
        further: the paper's other numbers, by name.
        reference: label of the row that differences are to.
    """

    label: str
    method: str
    own: dict[str, Any]
    common: dict[str, Any]
    paper: float
    further: dict[str, float]
    reference: str


@dataclass(frozen=True)
class Preset:
    """One table of a paper.

    Attributes:
        name: file name without ending.
        title: paper, table, model, and what varies, in a line.
        column: what the paper's number is, as "top-1 %".
        rows: in the paper's order.
        depth: blocks of the paper's model, where rows name blocks of it; counted from 0.
        providers: frozen models that rows name, by key: timm's names or folders of exported runs.
        measured: our own numbers beside the accuracy: heading -> key of a method's summary or of
            a run's last epoch.
    """

    name: str
    title: str
    column: str
    rows: tuple[Row, ...]
    depth: int | None = None
    providers: dict[str, str] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------ reading


def known_presets() -> dict[str, Path]:
    """The packaged presets: name -> file."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}


def preset_title(path: Path) -> str:
    """The first comment line of a preset's file: paper, table, model, what varies."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip().rstrip(".")


def load_preset(name: str) -> Preset:
    """Read a preset: a packaged name, in capitals or not, or a path.

    Raises:
        ValueError: it is neither (the message names the nearest), or the file is not as a preset should be.
    """
    known = known_presets()
    path = known.get(name.lower().replace("_", "-"), Path(name))
    if not path.is_file():
        hint = nearest(name.lower(), known)
        raise ValueError(f"unknown preset {name!r}{hint}; known: {', '.join(known)}, or a path to a YAML file")
    try:
        values = load_plain(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid YAML for a table: {error}") from error
    _check_keys(values, KEYS, required=("column", "reference", "rows"), where=str(path))
    rows = tuple(_row(row, values, where=f"{path}, row {i}") for i, row in enumerate(_rows(values, path)))
    _check_rows(rows, values.get("depth"), values.get("providers") or {}, where=str(path))
    return Preset(
        name=path.stem,
        title=preset_title(path),
        column=str(values["column"]),
        rows=rows,
        depth=values.get("depth"),
        providers=values.get("providers") or {},
        measured=values.get("measured") or {},
    )


def _rows(values: Mapping[str, Any], path: Path) -> list[Any]:
    if not isinstance(values["rows"], list) or not values["rows"]:
        raise ValueError(
            f"{path}: rows must be a list of rows, each as {{label: ..., options: {{...}}, paper: 80.9}}"
        )
    return values["rows"]


def _row(row: Any, values: Mapping[str, Any], *, where: str) -> Row:
    _check_keys(row, ROW_KEYS, required=("label", "paper"), where=where)
    method = row.get("method", values.get("method"))
    if method is None:
        raise ValueError(f"{where} names no method, and neither does the file")
    numbers = {"paper": row["paper"], **(row.get("further") or {})}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where}: {name} is {value!r}, but must be a number")
    return Row(
        label=str(row["label"]),
        method=str(method),
        own=row.get("options") or {},
        common=values.get("options") or {},
        paper=numbers.pop("paper"),
        further=numbers,
        reference=str(row.get("reference", values["reference"])),
    )


def _check_keys(values: Any, known: Sequence[str], *, required: Sequence[str], where: str) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must hold keys with values, not a {type(values).__name__}")
    for key in values:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{nearest(str(key), known)}; known: {', '.join(known)}")
    for key in required:
        if key not in values:
            raise ValueError(f"{where}: {key} is missing")


def _check_rows(rows: Sequence[Row], depth: int | None, providers: Mapping[str, str], *, where: str) -> None:
    labels = [row.label for row in rows]
    for row in rows:
        if labels.count(row.label) > 1:
            raise ValueError(f"{where}: {row.label!r} is the label of two rows")
        if row.reference not in labels:
            raise ValueError(f"{where}: reference {row.reference!r} is no row{nearest(row.reference, labels)}")
        provider = row.own.get("provider")
        if provider is not None and provider not in providers:
            raise ValueError(f"{where}: row {row.label!r} names provider {provider!r}, which providers lacks")
        if depth is None:
            continue
        for option, block in {**row.common, **row.own}.items():
            if option in BLOCKS and block is not None and not 0 <= block < depth:
                raise ValueError(f"{where}: {option} is {block}, but depth {depth} has 0 to {depth - 1}")


# ------------------------------------------------------------------ what is typed


def choose_rows(preset: Preset, typed: str | None) -> list[int]:
    """Numbers of the rows that `--rows` names, "0,3"; all if it was not typed.

    Raises:
        ValueError: no whole numbers, a row that the table does not have, or one named twice.
    """
    if typed is None:
        return list(range(len(preset.rows)))
    listed = ", ".join(f"{i} ({row.label})" for i, row in enumerate(preset.rows))
    try:
        numbers = [int(number) for number in str(typed).split(",")]
    except ValueError as error:
        raise ValueError(f"rows {typed!r}: want numbers with commas between, of {listed}") from error
    for number in numbers:
        if not 0 <= number < len(preset.rows):
            raise ValueError(f"rows {typed!r}: {preset.name} has no row {number}; it has {listed}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"rows {typed!r}: each must be named once")
    return sorted(numbers)


def choose_providers(preset: Preset, typed: str | None) -> dict[str, str]:
    """The preset's providers, with those that `--providers` names in their place: "deit-t=runs/a/model".

    Raises:
        ValueError: another form than KEY=MODEL, or a key that the preset does not have.
    """
    chosen = dict(preset.providers)
    for item in str(typed).split(",") if typed else []:
        key, equals, model = (part.strip() for part in item.partition("="))
        if not preset.providers:
            raise ValueError(f"providers {typed!r}: no row of {preset.name} has a provider")
        if key not in preset.providers:
            hint = nearest(key, preset.providers)
            raise ValueError(
                f"providers: {preset.name} has no provider {key!r}{hint}; it has {', '.join(preset.providers)}"
            )
        if not equals or not model:
            raise ValueError(
                f"providers {item!r}: want {key}=MODEL, timm's name of a model or the folder of an exported one"
            )
        chosen[key] = model
    return chosen
