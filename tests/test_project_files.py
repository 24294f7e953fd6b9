"""The files around the code: they can be read, and they agree with pyproject.toml and with one another."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import comastre

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {path.parent.name for path in (ROOT / "src" / "comastre").glob("*/__init__.py")}
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
# Used without an import of ours: torch's writer needs it.
NOT_IMPORTED = {"tensorboard"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    return yaml.safe_load(text_of(name))


def pythons() -> list[str]:
    """The versions of Python that the classifiers name."""
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in PROJECT["project"]["classifiers"]
    )
    return [match[1] for match in found if match]


# --- one version number ----------------------------------------------------------------------------------------------


def test_the_version_is_written_once_and_the_package_has_it() -> None:
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert ROOT / PROJECT["tool"]["hatch"]["version"]["path"] == ROOT / "src" / "comastre" / "__init__.py"
    assert metadata.version("comastre") == comastre.__version__
    assert read_yaml("CITATION.cff")["version"] == comastre.__version__


def test_the_changelog_has_this_version_below_what_is_not_released() -> None:
    text = text_of("CHANGELOG.md")
    first, *released = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, flags=re.MULTILINE)
    assert first == ("Unreleased", "")
    assert released[0] == (comastre.__version__, str(read_yaml("CITATION.cff")["date-released"]))
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, flags=re.MULTILINE)) <= kinds
    assert all(f"\n[{version}]: https://" in text for version, _ in (first, *released))


# --- Python and dependencies -----------------------------------------------------------------------------------------


def test_everything_speaks_of_the_same_pythons() -> None:
    assert PROJECT["project"]["requires-python"] == f">={pythons()[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == pythons()[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{pythons()[0].replace('.', '')}"
    jobs = read_yaml(".github/workflows/checks.yml")["jobs"]
    assert jobs["newest"]["strategy"]["matrix"]["python"] == pythons()
    assert f'python-version: "{pythons()[0]}"' in text_of(".github/workflows/checks.yml").partition("  lowest:")[2]


def declared(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def imported(folder: Path) -> dict[str, Path]:
    """Distributions of other people that the code imports, each with a file that does."""
    owners = metadata.packages_distributions()
    found: dict[str, Path] = {}
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
            for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"comastre"}:
                # A package that is not installed has its own name, as far as can be told.
                found.update(dict.fromkeys(map(canonicalize_name, owners.get(top, [top])), file))
    return found


def test_what_the_package_imports_is_declared_and_what_is_declared_is_imported() -> None:
    needed = declared(PROJECT["project"]["dependencies"])
    extras = PROJECT["project"]["optional-dependencies"]
    optional = declared([*extras["supervision"], *extras["cluster"]])
    found = imported(ROOT / "src")
    assert {name: file for name, file in found.items() if name not in needed | optional} == {}
    assert needed - found.keys() == NOT_IMPORTED


def test_the_project_names_its_places() -> None:
    assert {"Homepage", "Documentation", "Issues", "Changelog"} <= PROJECT["project"]["urls"].keys()


# --- citation --------------------------------------------------------------------------------------------------------


def test_the_citation_has_what_its_format_requires() -> None:
    """Required keys of CFF 1.2.0, and the paper as what to cite."""
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    paper = citation["preferred-citation"]
    assert citation.keys() >= {"message", "title", "authors", "cff-version"}
    assert paper.keys() >= {"type", "title", "authors", "year"}
    assert citation["license"] == PROJECT["project"]["license"]
    for author in (*citation["authors"], *paper["authors"]):
        assert author.keys() in ({"name"}, {"family-names", "given-names"})
    assert (paper["type"], paper["year"], len(paper["authors"])) == ("conference-paper", 2024, 4)
    assert paper["title"] in text_of("README.md").replace("\n> ", " ")


# --- checks ----------------------------------------------------------------------------------------------------------


def test_the_workflow_runs_what_the_checks_run_on_three_systems() -> None:
    workflow = read_yaml(".github/workflows/checks.yml")
    newest = workflow["jobs"]["newest"]
    assert [each.partition("-")[0] for each in newest["strategy"]["matrix"]["system"]] == ["ubuntu", "macos", "windows"]
    steps = [step["run"] for step in newest["steps"] if "run" in step]
    assert steps == [
        "pip install '.[dev,docs]'",
        "ruff check .",
        "ruff format --check .",
        "mypy",
        "comastre --help",
        "mkdocs build --strict",
        "pytest",
    ]
    script = re.sub(r"--quiet --disable-pip-version-check ", "", text_of(".ci/run"))
    places = [script.index(step) for step in steps[:-1]] + [script.index("\npytest\n")]
    assert places == sorted(places), "the same steps in the same order"
    lowest = [step["run"] for step in workflow["jobs"]["lowest"]["steps"] if "run" in step]
    assert any("--resolution lowest-direct" in step for step in lowest) and lowest[-1].startswith("pytest")


def test_hooks_before_a_commit_fetch_nothing() -> None:
    development = declared(PROJECT["project"]["optional-dependencies"]["dev"])
    hooks = []
    for repository in read_yaml(".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local"
        hooks += repository["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff", "ruff-format", "mypy"]
    for hook in hooks:
        assert hook["language"] == "system"
        assert hook["entry"].split()[0] in development


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_have_what_their_host_requires(template: Path) -> None:
    content = yaml.safe_load(template.read_text(encoding="utf-8"))
    if template.stem == "config":
        assert all(link.keys() == {"name", "url", "about"} for link in content["contact_links"])
        return
    assert {"name", "description", "body"} <= content.keys()
    identifiers = [field["id"] for field in content["body"]]
    assert len(set(identifiers)) == len(identifiers)
    for field in content["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]


def test_there_are_templates_for_a_bug_a_wish_a_number_and_a_change() -> None:
    assert {template.stem for template in TEMPLATES} == {"bug", "feature", "number", "config"}
    assert (ROOT / ".github" / "pull_request_template.md").is_file()


# --- where things are ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_folder_has_a_line(page: str) -> None:
    listed = re.findall(r"^\| `(\w+)/` \| \S", text_of(page), flags=re.MULTILINE)
    assert sorted(listed) == sorted(FOLDERS)


def test_links_between_the_project_files_lead_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", text_of(page)):
            assert "://" in link or (ROOT / link).is_file(), f"{page}: {link}"
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"} <= set(
        re.findall(r"\]\((\w+\.\w+)\)", text_of("README.md"))
    )


def test_every_area_has_a_page_in_the_reference() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")}
    assert pages.keys() == (FOLDERS - {"cli"}) | {"comastre"}
    for name, text in pages.items():
        assert text.rstrip().splitlines()[-1] == f"::: comastre.{name}" or name == "comastre"
    assert "\n::: comastre\n" in pages["comastre"]
    (reference,) = (each["Reference"] for each in read_yaml("mkdocs.yml")["nav"] if "Reference" in each)
    assert {name: page for each in reference for name, page in each.items()} == {
        name: f"api/{name}.md" for name in pages
    }


def test_the_documentation_asks_no_other_host() -> None:
    settings = read_yaml("mkdocs.yml")
    assert settings["theme"]["font"] is False
    assert "repo_url" not in settings, "with it every page asks for the repository's stars"
    assert not {"extra_javascript", "extra_css"} & settings.keys()
