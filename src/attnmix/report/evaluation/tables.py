"""The numbers of an evaluation: CSV files, the summary, and tables of text for the page."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attnmix.report.evaluation import records as read
from attnmix.report.page_parts import file_names
from attnmix.report.results import MISSING, Results, number, show
from attnmix.report.table import markdown_table


def write_tables(results: Results, folder: Path) -> None:
    """Write `QUESTION-TABLE.csv` for each table, a row per record, and `summary.csv`, a row per model.

    What is missing is an empty cell; numbers are written as they are, not rounded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = read.model_labels(results)
    sums = {
        f"{question}: {name}": numbers
        for question in read.questions(results)
        for name, numbers in read.values(results, question).items()
    }
    rows = [[label, *(numbers[i] for numbers in sums.values())] for i, label in enumerate(labels)]
    _write(folder / "summary.csv", ["model", *sums], rows)
    for question, names in table_files(results).items():
        for name, file in names.items():
            head, body = table_rows(results, question, name)
            _write(folder / file, head, body)


def table_files(results: Results) -> dict[str, dict[str, str]]:
    """The CSV file of each table, by question and table."""
    pairs = [
        (question, name) for question in read.questions(results) for name in read.table_names(results, question)
    ]
    files: dict[str, dict[str, str]] = {}
    for (question, name), file in zip(pairs, file_names("", ["-".join(pair) for pair in pairs]), strict=True):
        files.setdefault(question, {})[name] = f"{file.lstrip('-')}.csv"
    return files


def table_rows(results: Results, question: str, name: str) -> tuple[list[str], list[list[Any]]]:
    """Headings and a row for each record of every model, the model's label first."""
    found = read.table(results, question, name)
    keys = read.columns([record for records in found.values() for record in records])
    rows = [[label, *map(record.get, keys)] for label, records in found.items() for record in records]
    return ["model", *keys], rows


def table_text(results: Results, question: str, name: str) -> tuple[list[str], list[list[str]]]:
    """`table_rows` as text, each column with decimals of its own."""
    head, rows = table_rows(results, question, name)
    shown = [column_text(key, [row[i] for row in rows]) for i, key in enumerate(head)]
    return head, [list(cells) for cells in zip(*shown, strict=True)]


def summary_rows(results: Results) -> dict[str, list[list[str]]]:
    """By question: a row of text for each of its values, the value's name first, then one cell for each model."""
    found = {
        question: [[name, *column_text(name, numbers)] for name, numbers in read.values(results, question).items()]
        for question in read.questions(results)
    }
    return {question: rows for question, rows in found.items() if rows}


def evaluation_summary(results: Results) -> Table:
    """The summary for a terminal: a column for each model, the values in groups by question."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", min_width=26)
    for label in read.model_labels(results):
        # short labels stay whole on a narrow terminal, the names of values give way
        table.add_column(Text(label), justify="right", overflow="fold", min_width=min(len(label), 10))
    for question, rows in summary_rows(results).items():
        table.add_section()
        table.add_row(Text(question, style="bold"))
        for name, *cells in rows:
            table.add_row(Text(f"  {name}"), *map(Text, cells))
    return table


def evaluation_markdown(results: Results) -> str:
    """The summary as a GitHub table: a row for each value, a column for each model."""
    rows = [
        [f"{question}: {name}", *cells]
        for question, group in summary_rows(results).items()
        for name, *cells in group
    ]
    return markdown_table(["value", *read.model_labels(results)], rows)


def column_text(name: str, cells: Sequence[Any]) -> list[str]:
    """Cells as text: percentages and points with one decimal, other fractions so that the greatest shows three
    digits; whole numbers and words as they are, a dash for what is missing.
    """
    numbers = [cell for cell in cells if isinstance(cell, (int, float)) and number(cell) is not None]
    decimals = _decimals(name, numbers)
    return [_cell(cell, decimals) for cell in cells]


def _cell(cell: Any, decimals: int | None) -> str:
    if cell is None or isinstance(cell, str):
        return cell or MISSING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}".replace("-", "−") if abs(cell) >= 10_000 else show(cell, decimals or 0)
    if isinstance(cell, float):
        return show(cell, decimals) if decimals is not None else _tiny(cell)
    return str(cell)


def _tiny(cell: float) -> str:
    return f"{cell:.2e}".replace("-", "−") if number(cell) is not None else MISSING


def _decimals(name: str, numbers: Iterable[float]) -> int | None:
    """Decimals of a column; None: too small for any."""
    numbers = list(numbers)
    if all(isinstance(value, int) for value in numbers):
        return 0
    if "%" in name or "points" in name:
        return 1
    greatest = max(abs(value) for value in numbers)
    if 0 < greatest < 1e-4:
        return None
    return min(max(2 - math.floor(math.log10(greatest)), 0), 6) if greatest else 1


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        csv.writer(file).writerows([head, *rows])
