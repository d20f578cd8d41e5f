import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.trying import LEVEL, tried

pytest.importorskip("atheris")
RUNS = 400


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["recipes", "label_maps", "checkpoints", "annotations"])
def test_a_short_search(reader, tmp_path, happened):
    command = [sys.executable, Path(__file__).with_name("coverage_guided.py"), reader, "--runs", str(RUNS * LEVEL)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=500)
    happened.clear()  # the command itself
    assert found.returncode == 0, found.stderr[-3000:]
    done = re.search(r"Done (\d+) runs? in", found.stderr)
    assert done is not None, found.stderr[-3000:]
    assert int(done[1]) >= RUNS * LEVEL
    assert re.search(r"cov: [1-9]\d*", found.stderr)
    tried[f"coverage-guided: {reader}"] += int(done[1])
