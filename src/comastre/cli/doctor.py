"""The verb `comastre doctor`: small functions that each give one line on this machine, and its fix."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from comastre.text import say

Status = Literal["ok", "warn", "fail"]
GIGABYTE = 1024**3
# A small public file that every downloaded backbone resembles: one HEAD request, nothing is fetched.
PROBE = ("timm/resnet50.tv_in1k", "model.safetensors")
LOCAL_WEIGHTS = "give a local file with --backbone.weights FILE, or train from scratch with 'none'"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def doctor() -> int:
    """Say what this machine has, what is wrong and how to fix it."""
    checks = diagnose()
    say(render(checks))
    return 1 if any(check.status == "fail" for check in checks) else 0


def diagnose() -> list[Check]:
    """All checks of this machine."""
    torch_version, vision_version = installed("torch"), installed("torchvision")
    vision_needs = requirements("torchvision")
    return [
        check_python(sys.version_info[:3]),
        check_package("torch", torch_version, minimum_of("torch")),
        check_package("torchvision", vision_version, minimum_of("torchvision")),
        check_fit(torch_version, vision_version, vision_needs, import_error("torchvision.ops")),
        *check_devices(),
        check_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        check_memory(*memory()),
        check_disk(shutil.disk_usage(Path.cwd()).free),
        check_weights(offline=hub_is_offline(), probe=probe_hub),
        *check_other_packages(),
    ]


def render(checks: Sequence[Check]) -> str:
    """The report as text, a line per check and its fix below it where there is something to do."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<4}  {check.name:<{width}}  {check.detail}")
        if check.fix:
            lines.append(f"{'':<4}  {'':<{width}}  fix: {check.fix}")
    return "\n".join(lines)


def check_python(version: tuple[int, ...]) -> Check:
    """Python itself."""
    text = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", "fail", text, "install Python 3.11 or newer and make a new virtual environment with it")
    return Check("Python", "ok", f"{text} ({platform.system()} {platform.machine()})")


def check_package(name: str, version: str | None, minimum: str | None) -> Check:
    """An installed package against the lower bound that comastre declares."""
    if version is None:
        return Check(name, "fail", "not installed", f"pip install {name}")
    if minimum is not None and Version(version) < Version(minimum):
        return Check(name, "fail", f"{version}, older than {minimum}", f"pip install --upgrade '{name}>={minimum}'")
    return Check(name, "ok", version)


def check_fit(torch: str | None, vision: str | None, vision_needs: Sequence[str], error: str | None) -> Check:
    """Whether torchvision was built for this torch: what it declares, and whether its operators load."""
    name, fix = "torch + torchvision", "install them together: pip install --upgrade torch torchvision"
    if torch is None or vision is None:
        return Check(name, "fail", "one of them is missing", fix)
    for line in vision_needs:
        try:
            needed = Requirement(line)
        except InvalidRequirement:
            continue
        # Build tags such as +cu130 do not matter for the fit, pre-releases (nightlies) may fit.
        plain = Version(torch).public
        if needed.name == "torch" and not needed.specifier.contains(plain, prereleases=True):
            return Check(name, "fail", f"torchvision {vision} needs torch {needed.specifier}, here is {torch}", fix)
    if error is not None:
        return Check(name, "fail", f"torchvision.ops does not load: {error}", fix)
    return Check(name, "ok", f"torchvision {vision} fits torch {torch}")


def check_devices() -> list[Check]:
    """CPU, CUDA and MPS as torch sees them."""
    try:
        import torch
    except Exception as error:
        fix = "reinstall it: pip install --force-reinstall torch"
        return [Check("devices", "fail", f"torch does not load: {_first_line(error)}", fix)]
    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [describe_devices(cuda, mps=torch.backends.mps.is_available())]


def describe_devices(cuda: Sequence[str], mps: bool) -> Check:
    """One line on the devices; a CPU alone is enough for Shapes and for the tiny and small models."""
    if cuda or mps:
        return Check("devices", "ok", ", ".join(["CPU", *(f"CUDA {name}" for name in cuda), *(["MPS"] if mps else [])]))
    fix = "none needed for the shapes presets; for the voc and ade20k presets use a machine with a GPU"
    return Check("devices", "warn", "CPU only", fix)


def check_cores(cores: int) -> Check:
    """CPU cores that this process may use."""
    if cores < 2:
        return Check("cores", "warn", f"{cores}", "training on CPU wants 2 or more; set --data.workers 0")
    return Check("cores", "ok", f"{cores}")


def check_memory(total: int, available: int) -> Check:
    """Main memory in bytes."""
    detail = f"{available / GIGABYTE:.1f} of {total / GIGABYTE:.1f} GB free"
    if available < 2 * GIGABYTE:
        return Check("memory", "warn", detail, "close other programs, or lower --training.batch_size")
    return Check("memory", "ok", detail)


def check_disk(free: int) -> Check:
    """Free bytes in the current folder, where runs are written by default."""
    detail = f"{free / GIGABYTE:.1f} GB free in the current folder"
    if free < GIGABYTE:
        return Check("disk", "warn", detail, "make room, or give a folder on another disk with --out")
    return Check("disk", "ok", detail)


def check_weights(offline: bool, probe: Callable[[], str | None]) -> Check:
    """Whether pretrained weights can be fetched; `probe` gives what went wrong, or None."""
    name = "pretrained weights"
    if offline:
        return Check(name, "warn", "HF_HUB_OFFLINE is set, nothing is fetched", f"unset it, or {LOCAL_WEIGHTS}")
    error = probe()
    if error is not None:
        return Check(name, "warn", f"the hub cannot be reached: {error}", LOCAL_WEIGHTS)
    return Check(name, "ok", "the hub answers")


def check_other_packages() -> list[Check]:
    """The other dependencies that comastre declares: one line when all are there, else one per problem."""
    needed = [Requirement(line) for line in requirements("comastre")]
    names = [each.name for each in needed if each.marker is None and each.name not in ("torch", "torchvision")]
    checks = [check_package(name, installed(name), minimum_of(name)) for name in names]
    problems = [check for check in checks if check.status != "ok"]
    good = ", ".join(f"{check.name} {check.detail}" for check in checks if check.status == "ok")
    return [*problems, Check("packages", "ok", good)] if good else problems


def installed(name: str) -> str | None:
    """The installed version of a package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(name: str) -> list[str]:
    """What an installed package declares to need."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def minimum_of(name: str) -> str | None:
    """The lower bound that comastre declares for a package."""
    for line in requirements("comastre"):
        needed = Requirement(line)
        if needed.name == name:
            return next((each.version for each in needed.specifier if each.operator == ">="), None)
    return None


def import_error(module: str) -> str | None:
    """The first line of what importing `module` complains about, or None."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a mismatching torchvision raises RuntimeError, AttributeError or OSError
        return _first_line(error)
    return None


def memory() -> tuple[int, int]:
    """Total and available main memory in bytes."""
    import psutil

    state = psutil.virtual_memory()
    return state.total, state.available


def hub_is_offline() -> bool:
    """Whether the user switched the hub off."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def probe_hub() -> str | None:
    """Ask the hub for the size of one file; what went wrong, or None."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    from comastre.noise import short_of_retries

    try:
        with short_of_retries():
            get_hf_file_metadata(hf_hub_url(*PROBE), timeout=3)
    except Exception as error:  # each version of the hub's client has its own network errors
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
