"""What a newcomer relies on: the README's two commands, the checks and the recorded versions."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

from comastre.cli import main as cli

ROOT = Path(__file__).parents[1]
COMMANDS = ["pip install . && comastre demo", "pip install '.[dev]' && pytest"]


def test_the_readme_gives_exactly_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"```sh\n(.*?)\n```", text, flags=re.DOTALL) == COMMANDS
    opening = text.partition("```sh")[0]
    assert re.search(r"!\[.*\]\(.+\)", opening), "a picture comes before the commands"
    for picture in re.findall(r"!\[.*\]\((.+?)\)", text):
        assert (ROOT / picture).is_file()


def test_the_readme_lists_the_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `comastre ([\w-]+)", text, flags=re.MULTILINE)) == set(cli.VERBS)


def test_the_checks_can_be_run_and_use_the_readmes_install() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    for step in ("set -euo pipefail", "-m venv", "'.[dev,docs]'", "ruff check", "ruff format --check", "\nmypy\n"):
        assert step in text
    # Quiet, mkdocs would not count its warnings, and --strict would mean nothing.
    assert re.search(r"mkdocs build --strict(?!.*(-q|--quiet)).*\npytest\n", text)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_constraints_record_one_version_of_every_direct_dependency_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = project["dependencies"] + extras["dev"] + extras["docs"]
    lines = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in lines)
    assert sorted(line.partition("==")[0] for line in lines) == sorted(
        re.match(r"[\w-]+", each)[0] for each in declared
    )  # type: ignore[index]


def test_dependencies_have_lower_bounds_and_no_caps() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert all(re.fullmatch(r"[\w-]+>=[\d.]+", each) for each in project["dependencies"])
