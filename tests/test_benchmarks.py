"""The scripts of benchmarks/: the GPU's tables with torch and timm alone, and the page that shows all results."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# what comes with attnmix, but neither with torch nor with timm
NOT_THERE = ["accelerate", "jinja2", "jsonargparse", "matplotlib", "rich", "scipy", "sklearn", "torchmetrics"]


@pytest.mark.slow
def test_the_gpu_script_needs_torch_and_timm_alone(tmp_path):
    words = ["--device", "cpu", "--model", "test_vit", "--batch-size", "2", "--rounds", "3", "--eager"]
    words += ["--tokens", "4", "--out", str(tmp_path)]
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({NOT_THERE})); sys.argv = ['gpu.py', *{words}]; "
        f"runpy.run_path({str(ROOT / 'benchmarks' / 'gpu.py')!r}, run_name='__main__')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no SciPy here" in done.stdout
    for stem in ("step-cpu-bfloat16", "attention-cpu-bfloat16"):
        found = json.loads((tmp_path / f"{stem}.json").read_text())
        assert found["settings"]["command"] == "benchmarks/run_gpu.sh --model test_vit --batch-size 2 --rounds 3"
        assert str(tmp_path) not in json.dumps(found)
    methods = {row["method"] for row in json.loads((tmp_path / "step-cpu-bfloat16.json").read_text())["rows"]}
    assert {"cutmix", "transmix", "tl-align", "smmix", "smmix (mixup_prob=0.5)"} <= methods
    assert {method for method in methods if "token" in method} == {"tokenmixup:horizontal=null (VTM)"}


def publish():
    spec = importlib.util.spec_from_file_location("publish", ROOT / "benchmarks" / "publish.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_results_as_they_are():
    module = publish()
    for path in module.PAGES:
        page = path.read_text()
        assert page.count("<!-- results: ") == page.count("<!-- end -->") >= 2
        assert module.renewed(page, module.RESULTS) == page
    for path in module.RESULTS.rglob("*.json"):
        command = json.loads(path.read_text())["settings"]["command"]
        assert command.startswith(("attnmix bench ", "python benchmarks/", "benchmarks/run_gpu.sh"))


def test_a_marked_table_is_replaced_and_nothing_else(tmp_path):
    (tmp_path / "step.md").write_text("| new |\n")
    page = "before\n<!-- results: step -->\n| old |\n\nold note\n<!-- end -->\nafter"
    assert publish().renewed(page, tmp_path) == "before\n<!-- results: step -->\n| new |\n<!-- end -->\nafter"


@pytest.mark.slow
def test_the_scaling_script_measures_two_processes_and_forecasts(tmp_path):
    words = ["--model", "test_vit", "--batch_size", "2", "--rounds", "3", "--out", str(tmp_path)]
    command = [sys.executable, str(ROOT / "benchmarks" / "scaling.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "scaling-cpu.json").read_text())["rows"]
    assert [row["name"] for row in rows] == [
        "alone", "side by side", "DDP", "FSDP2 shard_grad_op", "FSDP2 full_shard", "all-reduce",
    ]  # fmt: skip
    assert [row["processes"] for row in rows] == [1, 2, 2, 2, 2, 2]
    assert all(min(row["seconds"]) > 0 for row in rows)
    found = json.loads((tmp_path / "forecast.json").read_text())
    assert {row["gpus"] for row in found["rows"]} == {8, 64, 512}
    assert all(0 < row["efficiency"] <= 1 for row in found["rows"])
    small = found["rows"][0]
    assert small["flops"] / small["batch_size"] == pytest.approx(3 * 2 * 4.6e9, rel=0.02)  # as published
