import copy
import io

from rich.console import Console

from attnmix.report import ablation_markdown, format_ablation, write_report
from attnmix.report.ablation import ablation_notes, ablation_table


def row(label, number, paper, ours, **changes):
    return {
        "number": number,
        "label": label,
        "reference": "all <on>",
        "paper": paper,
        "paper_difference": paper - 80.8,
        "paper_further": {},
        "ours": ours,
        "ours_std": None if ours is None else 1.25,
        "ours_difference": None if ours is None else ours - 71.0,
        "ours_difference_std": None if ours is None else 0.5,
        "ours_further": {},
        "note": None,
        **changes,
    }


ABLATION = {
    "preset": "some-table",
    "title": "Some paper, Table 1",
    "column": "top-1 %",
    "setting": "a model on data, 3 epochs, seeds 0, 1",
    "rows": [
        row("nothing", 0, 79.45, 69.5, paper_further={"samples": 11072}, ours_further={"step": 1.034}),
        row("[half]", 1, 81.0, 72.0, paper_further={"samples": 7.64}, note="block 1 of 2 for 3 of 12"),
        row("twice", 2, 80.8, 71.0, ours_further={"step": 12345.6}, note="block 1 of 2 for 3 of 12"),
        row("not run", 3, 80.0, None, note="left out"),
        row("all <on>", 5, 80.8, 71.0),
    ],
}


def test_both_differences_stand_beside_both_numbers():
    headings, rows = ablation_table({"ablation": ABLATION})
    assert headings == [
        "row", "#", "paper: top-1 %", "paper: difference", "ours: top-1 %", "ours: difference",
        "paper: samples", "ours: step",
    ]  # fmt: skip
    assert rows == [
        ["nothing", "0", "79.45", "−1.35", "69.5 ± 1.2", "−1.5 ± 0.5", "11,072", "1.03"],
        ["[half]", "1", "81.00", "+0.20", "72.0 ± 1.2", "+1.0 ± 0.5", "7.64", "–"],
        ["twice", "2", "80.80", "0.00", "71.0 ± 1.2", "0.0 ± 0.5", "–", "12,346"],
        ["not run", "3", "80.00", "−0.80", "–", "–", "–", "–"],
        ["all <on>", "5", "80.80", "reference", "71.0 ± 1.2", "reference", "–", "–"],
    ]


def test_notes_of_rows_of_a_missing_reference_and_of_a_single_seed():
    assert ablation_notes({"ablation": ABLATION}) == [
        "Ours: a model on data, 3 epochs, seeds 0, 1.",
        "[half]; twice: block 1 of 2 for 3 of 12.",
        "not run: left out.",
    ]  # fmt: skip
    less = copy.deepcopy(ABLATION)
    less["rows"].pop()
    for each in less["rows"]:
        each["ours_std"] = None
    assert ablation_notes({"ablation": less})[3:] == [
        "One seed: nothing here says how far a difference is chance.",
        "all <on>, a reference, was not run: no difference to it.",
    ]


def test_markdown_is_a_table_github_reads():
    lines = ablation_markdown({"ablation": ABLATION}).splitlines()
    assert lines[0] == "Some paper, Table 1"
    assert lines[3] == "| --- |" + " ---: |" * 7
    assert lines[4] == "| nothing | 0 | 79.45 | −1.35 | 69.5 ± 1.2 | −1.5 ± 0.5 | 11,072 | 1.03 |"
    assert lines[5].startswith("| \\[half\\] |")
    assert lines[8].startswith("| all &lt;on&gt; |")
    assert lines[-1] == "- not run: left out."


def test_the_terminals_table_reads_no_label_as_markup():
    text = io.StringIO()
    Console(file=text, width=80).print(format_ablation({"ablation": ABLATION}))
    assert "[half]" in text.getvalue()
    assert "all <on>" in text.getvalue()
    assert "…" not in text.getvalue()
    assert max(len(line) for line in text.getvalue().splitlines()) <= 80
    assert "block 1 of 2" in text.getvalue()


def test_the_page_shows_the_table_of_an_ablation_alone(tmp_path):
    page = write_report({"ablation": ABLATION}, [], tmp_path).read_text()
    assert "Some paper, Table 1." in page
    assert "all &lt;on&gt;" in page
    assert "not run: left out." in page
    assert "The paper" not in write_report({}, [], tmp_path).read_text()
