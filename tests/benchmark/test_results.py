import json

import pytest

from attnmix.benchmark.results import markdown_page, markdown_table, settings_line, write_results, write_whole

HEAD = ["model", "method", "ratio"]
BODY = [["vit", "a|b", "1.0"], ["vit", "none", "–"]]
SETTINGS = {
    "command": "attnmix bench step --rounds 3",
    "machine": {
        "gpu": "A GPU",
        "cpu": "A CPU",
        "cores": 8,
        "threads": 1,
        "python": "3.10.0",
        "versions": {"torch": "2.13", "timm": "1.0"},
        "date": "2026-11-21",
    },
    "notes": ["All of it."],
}


def test_numbers_go_to_the_right_and_a_bar_stays_in_its_cell():
    assert markdown_table(HEAD, BODY) == (
        "| model | method | ratio |\n| --- | --- | ---: |\n| vit | a\\|b | 1.0 |\n| vit | none | – |"
    )


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a row of 2 cells under a head of 3"):
        markdown_table(HEAD, [["a", "b"]])


def test_the_settings_line_says_how_the_numbers_came_about():
    assert settings_line(SETTINGS) == (
        "`attnmix bench step --rounds 3`, A GPU, A CPU (8 cores, 1 used), Python 3.10.0, torch 2.13, timm 1.0, "
        "2026-11-21"
    )
    assert settings_line({}) == ""


def test_a_page_is_line_table_and_notes():
    line, table, note = markdown_page(SETTINGS, HEAD, BODY).strip().split("\n\n")
    assert (line, table, note) == (settings_line(SETTINGS), markdown_table(HEAD, BODY), "All of it.")


def test_json_and_markdown_are_written(tmp_path):
    out = tmp_path / "new" / "folder"
    written = write_results(out, "step", settings=SETTINGS, rows=[{"ratio": 1.0}], head=HEAD, body=BODY)
    assert written == [out / "step.json", out / "step.md"]
    assert json.loads(written[0].read_text()) == {"settings": SETTINGS, "rows": [{"ratio": 1.0}]}
    assert written[1].read_text() == markdown_page(SETTINGS, HEAD, BODY)
    assert sorted(out.iterdir()) == sorted(written)


def test_an_interruption_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "a.md"
    file.write_text("before")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, b"after")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
