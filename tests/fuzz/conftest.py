import sys

import pytest
import torch

from tests.fuzz.trying import tried
from tests.fuzz.watching import CANARY, watched


@pytest.fixture(autouse=True)
def happened(tmp_path_factory, monkeypatch, tmp_path):
    """Whatever a test reads: no code of it runs, nothing is fetched, nothing is written or opened elsewhere."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / f"{CANARY}.py").write_text("class Thing:\n    def __init__(self, x=1): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    torch.rand(1)
    with watched(tmp_path_factory.getbasetemp()) as seen:
        yield seen
    sys.modules.pop(CANARY, None)
    assert seen == []


@pytest.fixture(scope="session", autouse=True)
def _counts():
    yield
    for kind, count in sorted(tried.items()):
        print(f"\n{count:6} {kind}", end="")
