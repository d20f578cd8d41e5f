import csv
import io

import pytest
from rich.console import Console

from attnmix.report import evaluation_markdown, evaluation_summary
from attnmix.report.evaluation.records import by_text, model_labels
from attnmix.report.evaluation.tables import column_text, write_tables
from tests.report.evaluation.made_up import make_evaluation


@pytest.fixture(scope="module")
def results():
    return make_evaluation(2, classes=4)[0]


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def same(cell, value):
    return (
        cell == ("" if value is None else value)
        if value is None or isinstance(value, str)
        else float(cell) == value
    )


def test_csv_files_hold_the_records_as_they_are(results, tmp_path):
    write_tables(results, tmp_path)
    files = {path.name for path in tmp_path.iterdir()} - {"summary.csv"}
    for question, asked in results["questions"].items():
        for name in next(iter(asked["answers"].values()))["tables"]:
            files.remove(f"{question}-{name}.csv")
            rows = read(tmp_path / f"{question}-{name}.csv")
            records = [
                (label, row) for label, answer in asked["answers"].items() for row in answer["tables"][name]
            ]
            assert len(rows) == len(records)
            for row, (label, record) in zip(rows, records, strict=True):
                assert list(row) == ["model", *record]
                assert row.pop("model") == label
                assert all(same(row[key], value) for key, value in record.items())
    assert files == set()


def test_the_summary_has_a_row_for_each_model(results, tmp_path):
    write_tables(results, tmp_path)
    rows = read(tmp_path / "summary.csv")
    assert [row["model"] for row in rows] == [model["label"] for model in results["models"]]
    for row in rows:
        for question, asked in results["questions"].items():
            for name, value in asked["answers"][row["model"]]["values"].items():
                assert same(row[f"{question}: {name}"], value)


def test_records_with_other_keys_share_a_file(tmp_path):
    answers = {
        "a": {"tables": {"t": [{"x": 1}, {"y": 'two, "quoted"\nlines'}]}},
        "b": {"tables": {"t": [{"z": None}]}},
    }
    write_tables({"questions": {"q/../q": {"answers": answers}}}, tmp_path / "tables")
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    rows = read(tmp_path / "tables" / "q-q-t.csv")
    assert [list(row.values()) for row in rows] == [
        ["a", "1", "", ""],
        ["a", "", 'two, "quoted"\nlines', ""],
        ["b", "", "", ""],
    ]


def test_models_that_only_a_question_names_are_there():
    results = {"models": [{"label": "b"}], "questions": {"q": {"answers": {"a": {}}, "left_out": {"c": "why"}}}}
    assert model_labels(results) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("name", "cells", "shown"),
    [
        ("top-1 %", [61.25, 7, None], ["61.2", "7.0", "–"]),
        ("change in points", [-3.21, 0.0], ["−3.2", "0.0"]),
        ("error", [0.12345, 0.01], ["0.123", "0.010"]),
        ("variance", [2e-5, -1e-6], ["2.00e−05", "−1.00e−06"]),
        ("parameters", [22_050_664, 512], ["22,050,664", "512"]),
        ("big", [1234.5, 2.0], ["1234", "2"]),
        ("map", ["attention", "", True], ["attention", "–", "yes"]),
        ("odd", [float("nan"), None], ["–", "–"]),
        ("none", [0.0], ["0.0"]),
    ],
)
def test_a_column_has_decimals_of_its_own(name, cells, shown):
    assert column_text(name, cells) == shown


def test_a_note_is_given_to_those_who_say_it():
    parts = {"a": ["x", "y"], "b": ["x", "z"], "c": ["x", "z", "z"]}
    assert by_text(parts, ["a", "b", "c"]) == [([], "x"), (["a"], "y"), (["b", "c"], "z")]
    assert by_text({"a": ["x"]}, ["a", "b"]) == [(["a"], "x")]


def test_markdown_has_a_row_for_each_value_and_no_markup(results):
    head, rule, first, second, *_ = evaluation_markdown(results).splitlines()
    assert head == r"| value | deit_small_patch16_224 | \$x\$ &lt;b&gt;DeiT-S&lt;/b&gt; · SMMix |"
    assert rule == "| --- | ---: | ---: |"
    assert first == "| accuracy: first accuracy % | 61.2 | 62.2 |"
    assert second == "| accuracy: second accuracy | 0.0123 | 0.0247 |"


def test_the_terminal_table_reads_no_markup(results):
    results["models"][0]["label"] = "[red]mine[/red]"
    output = io.StringIO()
    Console(file=output, width=80).print(evaluation_summary(results))
    text = output.getvalue()
    assert "[red]mine[/red]" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "first label-content %" in " ".join(text.split())


def test_nothing_to_summarise():
    assert evaluation_summary({}).row_count == 0


def test_short_labels_stay_whole_on_a_narrow_terminal():
    labels = ["none", "cutmix", "transmix", "smmix", "tl-align"]
    answers = {label: {"values": {"drift of the label the classifier reads": 0.05}} for label in labels}
    results = {"models": [{"label": label} for label in labels], "questions": {"x": {"answers": answers}}}
    output = io.StringIO()
    Console(file=output, width=80).print(evaluation_summary(results))
    assert output.getvalue().split()[: len(labels)] == labels
