"""On what a benchmark ran: enough to judge its numbers by, nothing that says whose machine it is."""

import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "timm", "attnmix")
CPU_INFO = Path("/proc/cpuinfo")


def describe_machine(device: torch.device, *, threads: int) -> dict[str, Any]:
    """CPU, cores, threads, Python, versions and date; the GPU where it is one that was measured.

    Args:
        device: what was measured on.
        threads: CPU threads that torch was given.
    """
    found: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count(), "threads": threads}
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return {
        **found,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "date": date.today().isoformat(),
    }


def _cpu_name() -> str:
    """The processor's model name; the architecture where the system does not say."""
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path is not installed
        return "not installed"
