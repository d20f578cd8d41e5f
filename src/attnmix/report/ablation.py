"""The table of an ablation: the paper's numbers beside ours, for the terminal, for GitHub and for the page."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from attnmix.report.results import MISSING, Results, number, show, show_spread
from attnmix.report.table import markdown_table

REFERENCE = "reference"
SHORT = {"difference": "diff.", REFERENCE: "ref."}  # for a terminal of 80 columns


def ablation_table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row of text for each row of the paper's table.

    "#" is the row's number there. Both differences are to the row's reference, ours the mean over seeds of the
    difference under the same seed; ± is the standard deviation over seeds.
    """
    ablation = results["ablation"]
    rows = ablation["rows"]
    column = ablation["column"]
    paper_further = list(dict.fromkeys(name for row in rows for name in row["paper_further"]))
    ours_further = list(dict.fromkeys(name for row in rows for name in row["ours_further"]))
    headings = ["row", "#", f"paper: {column}", "paper: difference", "ours: top-1 %", "ours: difference"]
    headings += [f"paper: {name}" for name in paper_further] + [f"ours: {name}" for name in ours_further]
    decimals = max(_decimals(row["paper"]) for row in rows)
    table = []
    for row in rows:
        is_reference = row["label"] == row["reference"]
        ours_difference = _show_signed(row["ours_difference"], 1)
        if number(row["ours_difference_std"]) is not None:
            ours_difference += f" ± {show(row['ours_difference_std'])}"
        table.append(
            [
                row["label"],
                str(row["number"]),
                show(row["paper"], decimals),
                REFERENCE if is_reference else _show_signed(row["paper_difference"], decimals),
                show_spread(row["ours"], row["ours_std"]),
                REFERENCE if is_reference and number(row["ours"]) is not None else ours_difference,
                *(_show_plain(row["paper_further"].get(name)) for name in paper_further),
                *(_show_short(row["ours_further"].get(name)) for name in ours_further),
            ]
        )
    return headings, table


def ablation_notes(results: Results) -> list[str]:
    """Our setting, what is to be said of single rows, and of the reference where it is missing."""
    rows = results["ablation"]["rows"]
    notes = [f"Ours: {results['ablation']['setting']}."]
    said: dict[str, list[str]] = {}
    for row in rows:
        if row["note"]:
            said.setdefault(row["note"], []).append(row["label"])
    notes += [f"{'; '.join(labels)}: {note}." for note, labels in said.items()]
    if any(number(row["ours"]) is not None and number(row["ours_std"]) is None for row in rows):
        notes.append("One seed: nothing here says how far a difference is chance.")
    measured = {row["label"] for row in rows if number(row["ours"]) is not None}
    needed = dict.fromkeys(row["reference"] for row in rows if row["label"] in measured)
    notes += [
        f"{label}, a reference, was not run: no difference to it." for label in needed if label not in measured
    ]
    return notes


def format_ablation(results: Results) -> Group:
    """The table for a terminal, its notes beneath; names are never read as markup."""
    headings, rows = ablation_table(results)
    title = Text(str(results["ablation"]["title"]))
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, heading in enumerate(headings):
        whose, _, what = heading.rpartition(": ")
        name = f"{whose}\n{SHORT.get(what, what)}" if whose else what
        table.add_column(name, justify="right" if i else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(SHORT.get(cell, cell) if i else cell) for i, cell in enumerate(row)))
    return Group(table, *(Text(note, style="dim") for note in ablation_notes(results)))


def ablation_markdown(results: Results) -> str:
    """The table for GitHub under its title, its notes beneath."""
    headings, rows = ablation_table(results)
    title = results["ablation"]["title"]
    notes = "".join(f"- {note}\n" for note in ablation_notes(results))
    text = f"{title}\n\n{markdown_table(headings, rows)}"
    return f"{text}\n{notes}" if notes else text


def _decimals(value: float) -> int:
    """Decimals that a number was printed with, as far as it shows."""
    return len(f"{value:.4f}".rstrip("0").partition(".")[2])


def _show_signed(value: object, decimals: int) -> str:
    shown = show(value, decimals)
    found = number(value)
    return f"+{shown}" if found is not None and found > 0 and shown.strip("0.") else shown


def _show_plain(value: Any) -> str:
    return MISSING if number(value) is None else f"{value:,}"


def _show_short(value: object) -> str:
    """Three digits that count, as the numbers of one column may be far apart."""
    found = number(value)
    if found is None:
        return MISSING
    return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.3g}"
