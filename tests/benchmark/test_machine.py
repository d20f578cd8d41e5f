import json
import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from attnmix.benchmark import machine
from attnmix.benchmark.machine import describe_machine

CPU = torch.device("cpu")


def test_it_says_what_numbers_depend_on_and_not_whose_machine_it_is():
    found = describe_machine(CPU, threads=3)
    assert found["threads"] == 3
    assert found["cores"] >= 1
    assert found["python"] == platform.python_version()
    assert found["versions"]["torch"] == version("torch")
    assert set(found["versions"]) == {"torch", "timm", "attnmix"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert "gpu" not in found
    written = json.dumps(found)
    assert platform.node() not in written
    assert str(Path.home()) not in written
    assert str(Path.cwd()) not in written


def test_the_processor_is_named_as_the_system_names_it(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\nmodel name\t: Some  CPU @ 2 GHz\n")
    monkeypatch.setattr(machine, "CPU_INFO", info)
    assert describe_machine(CPU, threads=1)["cpu"] == "Some CPU @ 2 GHz"
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    assert describe_machine(CPU, threads=1)["cpu"] == (platform.processor() or platform.machine())


def test_a_package_that_is_not_installed_is_no_error(monkeypatch):
    monkeypatch.setattr(machine, "PACKAGES", ("no-such-package-here",))
    assert describe_machine(CPU, threads=1)["versions"] == {"no-such-package-here": "not installed"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_named():
    assert describe_machine(torch.device("cuda"), threads=1)["gpu"] == torch.cuda.get_device_name()
