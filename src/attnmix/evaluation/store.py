"""Answers on disk, one file for each model and question, so that no question is asked twice."""

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from attnmix.evaluation.exam import Answer

FORMAT = 3
FOLDER = "answers"
MOST_BYTES = 2**31  # of an answer's pictures


class AnswerStore:
    """The answers in a folder.

    An answer is kept with the settings that it depends on, and is only given back for the same ones.
    """

    def __init__(self, out: Path) -> None:
        self.folder = Path(out) / FOLDER

    def load(self, label: str, question: str, settings: dict[str, Any]) -> Answer | None:
        """The answer that was kept; None: the question is open.

        Raises:
            ValueError: the folder holds an answer made with other settings, which is not to be lost; or a
                damaged file.
        """
        path = self._path(label, question)
        if not path.is_file():
            return None
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            before, answer = kept["settings"], kept["answer"]
            if not (isinstance(before, dict) and _is_answer(answer)):
                raise ValueError("not as an answer is")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is no answer of an evaluation, or is damaged: delete it") from error
        for key, value in _plain({"format": FORMAT, **settings}).items():
            if before.get(key) != value:
                raise ValueError(
                    f"{path.parent.parent.parent} holds an answer about {question} of {label!r} made with "
                    f"{key} {_short(before.get(key))}, not {value!r}: set it back, choose another --out, or "
                    f"delete {path}"
                )
        arrays = path.with_suffix(".npz")
        if arrays.is_file():
            answer["arrays"] = _read_arrays(arrays)
        return answer

    def save(self, label: str, question: str, settings: dict[str, Any], answer: Answer) -> None:
        """Keep an answer; what was there before is replaced in one move."""
        path = self._path(label, question)
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = dict(answer)
        arrays = plain.pop("arrays", None)
        if arrays:
            aside = path.with_suffix(".part.npz")
            np.savez_compressed(aside, **arrays)  # type: ignore[arg-type]
            os.replace(aside, path.with_suffix(".npz"))
        aside = path.with_suffix(".part")
        kept = {"settings": {"format": FORMAT, **settings}, "answer": plain}
        aside.write_text(json.dumps(kept, indent=1, allow_nan=False), encoding="utf-8")
        os.replace(aside, path)

    def _path(self, label: str, question: str) -> Path:
        return self.folder / folder_name(label) / f"{question}.json"


def folder_name(label: str) -> str:
    """A model's label as a file name."""
    return re.sub(r"[^A-Za-z0-9.+_=@-]+", "-", label).strip("-.") or "model"


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"it would unpack to more than {MOST_BYTES} bytes")
        with np.load(path, allow_pickle=False) as found:
            arrays = dict(found)
        if any(array.dtype.kind not in "biuf" for array in arrays.values()):
            raise ValueError("it holds something else than numbers")
    except Exception as error:  # whatever the readers of zip and .npy raise
        raise ValueError(f"{path} is damaged ({' '.join(str(error).split())[:200]}): delete it") from error
    return arrays


def _is_answer(answer: Any) -> bool:
    """Whether a report can be made of it."""
    if not isinstance(answer, dict) or "arrays" in answer:
        return False
    values, tables = answer.get("values", {}), answer.get("tables", {})
    lists = (answer.get("notes", []), answer.get("skipped", []))
    return (
        isinstance(values, dict)
        and all(map(_is_cell, values.values()))
        and isinstance(tables, dict)
        and all(isinstance(rows, list) and all(map(_is_row, rows)) for rows in tables.values())
        and all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in lists)
        and all(_is_cell(answer.get(name)) for name in ("images", "seconds"))
    )


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(cell, str) or _is_cell(cell) for cell in row.values())


def _is_cell(cell: Any) -> bool:
    return cell is None or (isinstance(cell, (int, float)) and abs(cell) < 1e300)  # NaN is not


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    return json.loads(json.dumps(settings))
