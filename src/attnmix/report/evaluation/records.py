"""Reading the results of an evaluation, of which any part may be missing or None."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnmix.report.results import Results, entries, number

Record = Mapping[str, Any]
Arrays = Mapping[str, Mapping[str, np.ndarray]]  # by model's label, then by name


def model_labels(results: Results) -> list[str]:
    """Labels of the models in their given order, then any that only a question names."""
    named = [str(model.get("label")) for model in entries(results, "models")]
    seen = [
        str(label)
        for asked in questions(results).values()
        for part in ("answers", "left_out")
        for label in asked.get(part) or {}
    ]
    return list(dict.fromkeys(named + seen))


def questions(results: Results) -> dict[str, Record]:
    """What was asked, by name, in its order."""
    return {str(name): asked or {} for name, asked in (results.get("questions") or {}).items()}


def answers(results: Results, question: str) -> dict[str, Record]:
    """The answers that there are, by model, in the models' order."""
    given = questions(results).get(question, {}).get("answers") or {}
    return {label: given[label] for label in model_labels(results) if given.get(label)}


def table_names(results: Results, question: str) -> list[str]:
    """The tables that any answer has, in order."""
    given = answers(results, question).values()
    return list(dict.fromkeys(str(name) for answer in given for name in answer.get("tables") or {}))


def table(results: Results, question: str, name: str) -> dict[str, list[Record]]:
    """The records of a table by model; models without any are left out."""
    found = {
        label: list((answer.get("tables") or {}).get(name) or [])
        for label, answer in answers(results, question).items()
    }
    return {label: records for label, records in found.items() if records}


def columns(records: Sequence[Record]) -> list[str]:
    """The keys of all records, in the order of their first record."""
    return list(dict.fromkeys(str(key) for record in records for key in record))


def values(results: Results, question: str) -> dict[str, list[float | None]]:
    """The summary's numbers by name: one for each of `model_labels`, None where it has none."""
    given = answers(results, question)
    names = dict.fromkeys(str(name) for answer in given.values() for name in answer.get("values") or {})
    return {
        name: [number((given.get(label, {}).get("values") or {}).get(name)) for label in model_labels(results)]
        for name in names
    }


def points(records: Sequence[Record], across: str, up: str) -> list[tuple[float, float]]:
    """Pairs of two columns, rising in the first; records that lack one are left out."""
    found = ((number(record.get(across)), number(record.get(up))) for record in records)
    return sorted((x, y) for x, y in found if x is not None and y is not None)


def by_text(parts: Mapping[str, Sequence[str]], everybody: Sequence[str]) -> list[tuple[list[str], str]]:
    """What several models say in the same words once, with their labels; no labels where all of them say it."""
    said: dict[str, list[str]] = {}
    for label, texts in parts.items():
        for text in dict.fromkeys(texts):
            said.setdefault(text, []).append(label)
    return [([] if set(labels) >= set(everybody) else labels, text) for text, labels in said.items()]
