"""The report of an evaluation: CSV tables, figures, and one HTML page that holds what it shows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnmix.report.evaluation import records as read
from attnmix.report.evaluation.figures import figures_of
from attnmix.report.evaluation.tables import column_text, summary_rows, table_files, table_text, write_tables
from attnmix.report.page_parts import environment, file_names, moment, sections, setting, write_pictures
from attnmix.report.results import MISSING, Results, entries, show
from attnmix.report.style import method_styles, short

OPEN_ROWS, MOST_ROWS = 40, 500  # more are folded away; more still are left to the CSV file
MOST_SKIPPED = 20  # names of unreadable images


def write_evaluation(
    results: dict[str, Any], arrays: Mapping[str, Mapping[str, np.ndarray]], out_dir: Path
) -> Path:
    """Write `out_dir/tables/*.csv`, `out_dir/figures/*.png` and `out_dir/report.html`; return the page's path.

    The page needs neither network nor script nor the other files. What the results lack is shown as a dash.

    Args:
        results: models, questions and their answers, and the settings they were asked with.
        arrays: by model's label, the arrays of its answer to "pictures".
        out_dir: made if it is not there.
    """
    out_dir = Path(out_dir)
    write_tables(results, out_dir / "tables")
    labels = read.model_labels(results)
    names = list(read.questions(results))
    figures = {name: list(figures_of(results, arrays, name)) for name in names}
    write_pictures([picture for found in figures.values() for picture, _ in found], out_dir / "figures")

    settings = results.get("settings") or {}
    page = environment().get_template("evaluation.html.j2")
    text = page.render(
        title=_title(results, labels),
        created=moment(results.get("created")),
        command=str(results.get("command") or MISSING),
        labels=labels,
        colors={label: style.color for label, style in method_styles(labels).items()},
        data=setting(settings["data"]) if settings.get("data") else None,
        models=_models(results),
        summary=summary_rows(results),
        questions=[
            _question(results, name, anchor, figures[name])
            for name, anchor in zip(names, file_names("question", names), strict=True)
        ],
        settings=list(sections(settings)),
        machine=results.get("machine") or {},
        missing=MISSING,
    )
    path = out_dir / "report.html"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def _title(results: Results, labels: Sequence[str]) -> str:
    if results.get("title"):
        return str(results["title"])
    return f"Evaluation of {short(labels[0], 80) if len(labels) == 1 else f'{len(labels)} models'}"


def _models(results: Results) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of text about the models."""
    models = entries(results, "models")
    keys = [key for key in read.columns(models) if key != "label"]
    shown = [column_text(key, [model.get(key) for model in models]) for key in keys]
    names = [str(model.get("label")) for model in models]
    return ["model", *keys], [list(cells) for cells in zip(names, *shown, strict=True)]


def _question(results: Results, name: str, anchor: str, figures: Sequence[tuple[Any, str]]) -> dict[str, Any]:
    """What the page says about one question."""
    asked, given = read.questions(results)[name], read.answers(results, name)
    labels = read.model_labels(results)
    reasons = {str(label): [str(why)] for label, why in (asked.get("left_out") or {}).items()}
    notes = {label: [str(note) for note in answer.get("notes") or []] for label, answer in given.items()}
    skipped = {label: [_names(answer["skipped"])] for label, answer in given.items() if answer.get("skipped")}
    return {
        "name": name,
        "anchor": anchor,
        "about": asked.get("about"),
        "figures": figures,
        "tables": [
            _table(results, name, table, file) for table, file in table_files(results).get(name, {}).items()
        ],
        "notes": read.by_text(notes, list(given)),
        "left_out": read.by_text(reasons, labels),
        "skipped": read.by_text(skipped, list(given)),
        "looked_at": read.by_text(_shown(given, "images", ""), list(given)),
        "took": read.by_text(_shown(given, "seconds", " s"), list(given)),
    }


def _table(results: Results, question: str, name: str, file: str) -> dict[str, Any]:
    head, rows = table_text(results, question, name)
    return {
        "name": name,
        "file": file,
        "columns": head,
        "rows": rows if len(rows) <= MOST_ROWS else None,
        "count": len(rows),
        "open": len(rows) <= OPEN_ROWS,
    }


def _shown(given: Mapping[str, read.Record], key: str, unit: str) -> dict[str, list[str]]:
    found = {label: show(answer.get(key), 0, unit=unit) for label, answer in given.items()}
    return {label: [text] for label, text in found.items() if text != MISSING}


def _names(skipped: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in skipped[:MOST_SKIPPED])
    more = len(skipped) - MOST_SKIPPED
    return f"{shown} and {more} more" if more > 0 else shown
