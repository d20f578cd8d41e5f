"""What an evaluation came to, as one dictionary, and written down."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace

from attnmix.benchmark.machine import describe_machine
from attnmix.benchmark.results import write_whole
from attnmix.commands.exams import Material
from attnmix.evaluation.exam import Exam, Question
from attnmix.evaluation.suite import Outcome
from attnmix.report import evaluation_markdown, write_evaluation


def collect(
    outcome: Outcome,
    exams: Sequence[Exam],
    questions: Mapping[str, Question],
    material: Material,
    arguments: Namespace,
) -> dict[str, Any]:
    """Everything as plain numbers and words, arrays left out."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command_line(arguments),
        "settings": {**asdict(material), "batch_size": arguments.batch_size},
        "machine": describe_machine(exams[0].subject.device, threads=torch.get_num_threads()),
        "models": [_described(exam) for exam in exams],
        "questions": {
            name: {
                "about": question.about,
                "answers": {
                    label: {key: value for key, value in answer.items() if key != "arrays"}
                    for label, answer in outcome.answers.get(name, {}).items()
                },
                "left_out": {**outcome.left_out.get(name, {}), **outcome.failed.get(name, {})},
            }
            for name, question in questions.items()
            if any(name in found for found in (outcome.answers, outcome.left_out, outcome.failed))
        },
    }


def _described(exam: Exam) -> dict[str, Any]:
    subject = exam.subject
    return {
        "label": subject.label,
        "network": type(subject.model).__name__,
        "method": subject.method,
        "method options": ", ".join(f"{name}={value}" for name, value in subject.method_options.items()),
        "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
        "image size": "x".join(map(str, subject.image_size)),
        "weights": subject.fingerprint[:12],
    }


def write(results: dict[str, Any], outcome: Outcome, out: Path) -> Path:
    """Write results.json, summary.md, tables, figures and the page; return the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "results.json", json.dumps(results, indent=1, allow_nan=False).encode())
    write_whole(out / "summary.md", evaluation_markdown(results).encode("utf-8", "backslashreplace"))
    pictures = outcome.answers.get("pictures", {})
    return write_evaluation(results, {label: answer.get("arrays", {}) for label, answer in pictures.items()}, out)


def command_line(arguments: Namespace) -> str:
    """The command that asks the same again, and finds what was answered."""
    from attnmix.commands.evaluate import add_arguments

    parser = ArgumentParser()
    add_arguments(parser)
    words = ["attnmix", "evaluate", *arguments.models]
    for name, value in vars(arguments).items():
        if name not in ("models", "device", "workers") and value != parser.get_default(name):
            words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return shlex.join(words)
