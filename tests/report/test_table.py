from rich.console import Console

from attnmix.report import control_table, format_summary, summary_markdown, summary_table
from attnmix.report.table import SUMMARY_COLUMNS, run_table

ROW = {
    "label": "smmix",
    "mixup_share": 0.5,
    "seeds": 3,
    "top1_mean": 69.84,
    "top1_std": 1.26,
    "top1_min": 68.7,
    "top1_max": 71.2,
    "step_ratio": 1.18,
    "step_interval": [1.16, 1.2],
    "label_content_error": 0.126,
    "label_content_se": 0.004,
    "seconds": 149.0,
}
CONTROL = {"label": "box area", "label_content_error": 0.171, "standard_error": 0.004}


def printed(results, width=80):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(format_summary(results))
    return capture.get()


def test_every_value_of_a_row():
    assert summary_table({"summary": [ROW]}) == [
        ["smmix", "50 %", "3", "69.8 ± 1.3", "68.7–71.2", "1.18× (1.16–1.20)", "0.126 ± 0.004", "149"]
    ]


def test_markdown_with_the_controls_beneath():
    heading, *rest = summary_markdown({"summary": [ROW], "controls": [CONTROL]}).splitlines()
    assert heading == f"| {' | '.join(SUMMARY_COLUMNS)} |"
    assert rest == [
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| smmix | 50 % | 3 | 69.8 ± 1.3 | 68.7–71.2 | 1.18× (1.16–1.20) | 0.126 ± 0.004 | 149 |",
        "",
        "| control | label-content error |",
        "| --- | ---: |",
        "| box area | 0.171 ± 0.004 |",
    ]


def test_markdown_escapes_names():
    table = summary_markdown({"methods": ["a|b <i>*x*</i>\n`c`"]})
    assert r"| a\|b &lt;i&gt;\*x\*&lt;/i&gt; \`c\` | – |" in table
    assert len(table.splitlines()) == 3


def test_missing_parts_are_dashes(broken):
    rows = {row[0]: row[1:] for row in summary_table(broken)}
    assert list(rows) == ["none", "cutmix", "smmix", "never-ran"]
    assert rows["never-ran"] == rows["smmix"] == ["–"] * 7
    assert rows["none"][2] == rows["none"][4] == rows["none"][5] == "–"
    assert rows["cutmix"][1] == "1"
    assert rows["cutmix"][4:6] == ["1.00×", "0.171"]
    assert control_table(broken) == []
    assert "nan" not in summary_markdown(broken) + printed(broken)


def test_runs_with_missing_parts(broken):
    rows = run_table(broken)
    assert len(rows) == 4
    assert rows[2][2] == rows[2][7] == rows[3][3] == rows[3][8] == "–"
    assert rows[3][5:7] == ["0.171 ± 0.004", "−0.010"]


def test_the_terminal_table_fits_80_columns_and_reads_no_markup(results):
    results["methods"].append("[red]mine[/red]")
    text = printed(results)
    assert "[red]mine" in text
    for value in ("constant one", "0.235 ± 0.004", "(1.16–1.20)", "0.126 ± 0.004"):
        assert value in text
    assert max(map(len, text.splitlines())) <= 80
