"""Data flows down the floor plan: a folder imports only from those above it, and no torch is loaded for help."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import comastre

ROOT = Path(comastre.__file__).parent
# From top to bottom; the first row may be used by everybody.
FLOORS = (
    (
        "errors",
        "allocator",
        "files",
        "documents",
        "paths",
        "arguments",
        "text",
        "noise",
        "live_line",
        "section",
        "distributed",
        "segmentation",
        "enlarging",
        "class_table",
    ),
    ("config",),
    ("data",),
    ("stream",),
    ("nets",),
    ("losses",),
    ("methods",),
    ("bundle",),
    ("evaluation",),
    ("prediction",),
    ("training",),
    ("studies",),
    ("learning",),
    ("serving",),
    ("report",),
    ("cli", "api"),
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}
WITHOUT_TORCH = (
    "config",
    "cli",
    "section",
    "allocator",
    "text",
    "noise",
    "live_line",
    "errors",
    "files",
    "documents",
    "paths",
    "arguments",
    "class_table",
)


def imports(file: Path) -> Iterator[str]:
    """Modules of this package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "comastre")
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{file} imports relatively: write the whole name")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "comastre":
            inside = [f"comastre.{alias.name}" for alias in node.names if alias.name != "__version__"]
            yield from inside if node.module == "comastre" else [str(node.module)]


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: file.relative_to(ROOT).as_posix())
def test_imports_go_up_only(file: Path) -> None:
    own = file.relative_to(ROOT).with_suffix("").parts[0]
    if own in ("__init__", "__main__"):
        return
    assert own in FLOOR_OF, f"{own} has no place in the floor plan"
    for module in imports(file):
        other = module.split(".")[1]
        assert other == own or FLOOR_OF[other] < FLOOR_OF[own] or FLOOR_OF[own] == 0, f"{file} imports {module}"
        assert FLOOR_OF[other] == 0 or FLOOR_OF[own] > 0, f"{file} is for everybody but imports {module}"


def test_the_root_keeps_a_handful_of_modules() -> None:
    modules = {file.stem for file in ROOT.glob("*.py")}
    assert modules <= {"__init__", "__main__", "api", *FLOORS[0]}


def test_the_command_line_and_the_configuration_load_no_torch() -> None:
    """Help is instant only as long as nothing on its way imports torch."""
    files = [file for name in WITHOUT_TORCH for file in (*ROOT.glob(f"{name}/*.py"), *ROOT.glob(f"{name}.py"))]
    modules = [".".join(("comastre", *file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    assert len(modules) > 15
    program = f"import sys, importlib; [importlib.import_module(name) for name in {sorted(modules)!r}]"
    program += "; print([name for name in ('torch', 'timm', 'scipy', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
