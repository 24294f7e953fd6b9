"""What a run was trained with, in its own `environment.json`: numbers can only be repeated where this is known."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from comastre import __version__
from comastre.config.run_files import ENVIRONMENT
from comastre.files import write_whole

_PACKAGES = ("torch", "torchvision", "timm", "lightning-fabric", "numpy")


def environment(device: torch.device, processes: int) -> dict[str, str]:
    """Versions and hardware, without the names of the machine and its user."""
    found = {"comastre": __version__, "python": platform.python_version(), "system": platform.platform(terse=True)}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    found["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {_processor()}"
    found["processes"] = str(processes)
    found["cores"] = f"{os.cpu_count()}, {torch.get_num_threads()} threads per process"
    return found


def write_environment(out: Path, device: torch.device, processes: int) -> None:
    """Write down the environment of this start; a run that goes on elsewhere keeps that of its last start."""
    content = json.dumps(environment(device, processes), indent=1) + "\n"
    write_whole(out / ENVIRONMENT, content.encode())


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
