"""The table of docs/models.md, run."""

from pathlib import Path

import pytest

from tests import families

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"


@pytest.mark.slow
def test_the_page_of_models_says_what_runs():
    assert families.page() == PAGE.read_text(encoding="utf-8"), (
        "docs/models.md is not what runs: `.venv/bin/python -m tests.families docs/models.md` writes it anew"
    )
