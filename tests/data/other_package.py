"""Packages beside this one, as an installer leaves them, whose datasets are found by their entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GROUP = "comastre.datasets"


def write_package(site: Path, package: str, modules: Mapping[str, str], entries: Mapping[str, str]) -> Path:
    """A folder for sys.path that holds the modules and what says that the package is installed."""
    facts = site / f"{package.replace('-', '_')}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (facts / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source)
    return site
