"""Answers on disk, one file for each model and question, so that no question is asked twice."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from attnmix.evaluation.exam import Answer

FORMAT = 3
FOLDER = "answers"


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
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no answer of an evaluation, or is damaged: delete it") from error
        for key, value in _plain({"format": FORMAT, **settings}).items():
            if before.get(key) != value:
                raise ValueError(
                    f"{path.parent.parent.parent} holds an answer about {question} of {label!r} made with {key} "
                    f"{before.get(key)!r}, not {value!r}: set it back, choose another --out, or delete {path}"
                )
        arrays = path.with_suffix(".npz")
        if arrays.is_file():
            with np.load(arrays, allow_pickle=False) as found:
                answer["arrays"] = dict(found)
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


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    return json.loads(json.dumps(settings))
