"""What a benchmark found, as JSON and as a Markdown table; needs nothing but Python."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A GitHub table; columns of numbers to the right.

    Raises:
        ValueError: a row of another length than the head.
    """
    for row in body:
        if len(row) != len(head):
            raise ValueError(f"a row of {len(row)} cells under a head of {len(head)}: {list(row)}")
    rule = ["---:" if right else "---" for right in right_aligned(head, body)]
    rows = [[cell.replace("|", "\\|") for cell in row] for row in [head, rule, *body]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def right_aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[bool]:
    """For each column whether it holds numbers, that is cells that begin with a digit, a sign or nothing."""
    columns = [[row[place] for row in body] for place in range(len(head))]
    return [all(cell[:1] in "0123456789+-–−" for cell in column) and any(column) for column in columns]


def settings_line(settings: Mapping[str, Any]) -> str:
    """One line with what a reader needs to judge the numbers: command, machine, versions, date."""
    machine = settings.get("machine", {})
    cores, threads = machine.get("cores"), machine.get("threads")
    parts = [
        f"`{settings['command']}`" if settings.get("command") else "",
        machine.get("gpu", ""),
        machine.get("cpu", "") + (f" ({cores} cores, {threads} used)" if cores and threads else ""),
        f"Python {machine['python']}" if machine.get("python") else "",
        *(f"{name} {number}" for name, number in machine.get("versions", {}).items()),
        machine.get("date", ""),
    ]
    return ", ".join(part for part in parts if part)


def markdown_page(settings: Mapping[str, Any], head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """The settings' line, the table, and the settings' `notes` below it."""
    parts = [settings_line(settings), markdown_table(head, body), *settings.get("notes", ())]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_results(
    out: Path,
    stem: str,
    *,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    head: Sequence[str],
    body: Sequence[Sequence[str]],
) -> list[Path]:
    """Write `<stem>.json` (settings and rows) and `<stem>.md` (settings' line and table) into the folder `out`.

    Args:
        out: made where it is missing.
        stem: the files' name without ending.
        settings: what was asked for; of them `command`, `machine` (as `describe_machine` has it) and `notes`, a
            list of sentences, are read for the Markdown file.
        rows: plain numbers, words and lists.
        head: the table's columns.
        body: its rows, as they are to be read.

    Returns:
        Both paths.
    """
    out.mkdir(parents=True, exist_ok=True)
    data = json.dumps({"settings": dict(settings), "rows": [dict(row) for row in rows]}, indent=1) + "\n"
    return [
        write_whole(out / f"{stem}.json", data.encode()),
        write_whole(out / f"{stem}.md", markdown_page(settings, head, body).encode()),
    ]


def write_whole(path: Path, data: bytes) -> Path:
    """Write all or nothing: an interruption leaves the file as it was."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
