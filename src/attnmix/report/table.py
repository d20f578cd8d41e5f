"""The summary table: as rows of text, for the terminal, and for GitHub."""

import re
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attnmix.report.results import (
    MISSING,
    Results,
    entries,
    method_labels,
    pair,
    show,
    show_range,
    show_share,
    show_spread,
    summary_of,
)

SUMMARY_COLUMNS = (
    "method",
    "Mixup steps",
    "seeds",
    "top-1 %",
    "min–max",
    "step time / CutMix",
    "label-content error",
    "seconds",
)
HEADINGS = {  # in two lines, for a terminal
    "Mixup steps": "Mixup\nsteps",
    "step time / CutMix": "step time\n/ CutMix",
    "label-content error": "label-content\nerror",
}
CONTROL_COLUMNS = ("control", "label-content error")
RUN_COLUMNS = (
    "method",
    "seed",
    "top-1 %",
    "top-5 %",
    "train top-1 %",
    "label-content error",
    "bias",
    "seconds",
    "images/s",
)


def summary_table(results: Results) -> list[list[str]]:
    """A row of text for each method under `SUMMARY_COLUMNS`; what is missing or not finite is a dash.

    Top-1 ± standard deviation over seeds, step time with its interval, label-content error ± standard error.
    """
    rows = []
    for label in method_labels(results):
        row = summary_of(results, label)
        interval = pair(row.get("step_interval"))
        step_time = show(row.get("step_ratio"), 2, unit="×")
        if interval is not None and step_time != MISSING:
            step_time += f" ({show_range(*interval, 2)})"
        rows.append(
            [
                label,
                show_share(row.get("mixup_share")),
                show(row.get("seeds"), 0),
                show_spread(row.get("top1_mean"), row.get("top1_std")),
                show_range(row.get("top1_min"), row.get("top1_max")),
                step_time,
                show_spread(row.get("label_content_error"), row.get("label_content_se"), 3),
                show(row.get("seconds"), 0),
            ]
        )
    return rows


def control_table(results: Results) -> list[list[str]]:
    """A row of text for each control under `CONTROL_COLUMNS`; empty where nothing was measured."""
    return [
        [str(row.get("label")), show_spread(row.get("label_content_error"), row.get("standard_error"), 3)]
        for row in entries(results, "controls")
    ]


def run_table(results: Results) -> list[list[str]]:
    """A row of text for each run under `RUN_COLUMNS`."""
    rows = []
    for run in entries(results, "runs"):
        content = run.get("label_content_error") or {}
        rows.append(
            [
                str(run.get("label")),
                show(run.get("seed"), 0),
                show(run.get("top1")),
                show(run.get("top5")),
                show(run.get("train_top1")),
                show_spread(content.get("mean"), content.get("standard_error"), 3),
                show(content.get("bias"), 3),
                show(run.get("seconds"), 0),
                show(run.get("images_per_second"), 0),
            ]
        )
    return rows


def format_summary(results: Results) -> Table:
    """The summary for a terminal of 80 columns, the controls beneath; names are never read as markup.

    Least and greatest top-1 are left out, for width.
    """
    left_out = SUMMARY_COLUMNS.index("min–max")
    columns = [name for name in SUMMARY_COLUMNS if name != "min–max"]
    title = Text(str(results.get("title") or ""))
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(HEADINGS.get(name, name), justify="right" if i else "left")
    for row in summary_table(results):
        cells = row[:left_out] + row[left_out + 1 :]
        table.add_row(*(Text(cell.replace(" (", "\n(") if i else cell) for i, cell in enumerate(cells)))
    controls = control_table(results)
    if controls:
        table.add_section()
    where = columns.index("label-content error")
    for label, error in controls:
        cells = [""] * len(columns)
        cells[0], cells[where] = label, error
        table.add_row(*(Text(cell, style="dim") for cell in cells))
    return table


def summary_markdown(results: Results) -> str:
    """The summary as a GitHub table, the controls as a second one beneath it."""
    text = markdown_table(SUMMARY_COLUMNS, summary_table(results))
    controls = control_table(results)
    return f"{text}\n{markdown_table(CONTROL_COLUMNS, controls)}" if controls else text


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table, the first column to the left; nothing in a cell is read as markup."""
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    named, *body = ([_plain(cell) for cell in row] for row in (columns, *rows))
    cells = [named, rule, *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _plain(text: str) -> str:
    """`text` on one line with nothing that Markdown or HTML would read as markup."""
    escaped = re.sub(r"([\\`*$\[\]|])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
