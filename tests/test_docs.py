"""The guides: every command in them is one that the program takes, cheap ones run, and their Python works."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from comastre.cli import compare as compare_command
from comastre.cli import evaluate as eval_command
from comastre.cli import learn as learn_command
from comastre.cli import main as cli
from comastre.config.datasets import datasets, find_dataset, installed
from comastre.config.methods import methods
from comastre.config.run import DataConfig, RunConfig
from comastre.config.settings import load_config
from comastre.data.build import build_datasets
from comastre.data.testing import check_dataset
from comastre.errors import UserError
from comastre.studies.plan import plan

ROOT = Path(__file__).parents[1]
NAMES = tuple(datasets())
GUIDES = (
    "my-own-data",
    "few-images",
    "reproduce-the-paper",
    "compare",
    "benchmark",
    "scaling",
    "how-it-works",
    "add-a-method",
    "add-a-dataset",
)
PAGES = (*GUIDES, "specification", "experiments")


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def blocks(text: str, *kinds: str) -> list[str]:
    return [body for kind, body in re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL) if kind in kinds]


def commands(page: str) -> list[list[str]]:
    """The arguments of every `comastre` in the page's consoles."""
    joined = "\n".join(blocks(text_of(page), "console", "bash", "sh")).replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith(("$ ", "comastre "))]
    assert all(line.startswith("comastre ") for line in lines), "the test knows no other programs"
    return [shlex.split(line)[1:] for line in lines]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Verbs that write down what they are asked to do instead of doing it."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def recorder(verb: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(verb)
        def record(*args: Any, **kwargs: Any) -> int:
            calls.append((verb.__name__, dict(inspect.signature(verb).bind(*args, **kwargs).arguments)))
            return 0

        return record

    for verbs in (cli.VERBS, cli.DATA_VERBS):
        for name, verb in list(verbs.items()):
            monkeypatch.setitem(verbs, name, recorder(verb))
    for module, name in ((cli, "train"), (cli, "pretrain"), (cli, "data"), (learn_command, "learn")):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, recorder(getattr(module, name)))
    return calls


@pytest.mark.parametrize("page", GUIDES)
def test_every_command_is_one_that_the_program_takes(
    page: str, asked: list[tuple[str, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "compare":
        (tmp_path / "masks.yaml").write_text(blocks(text_of(page), "yaml")[0])
    lines = commands(page)
    assert lines, "a guide without a command"
    for line in lines:
        before = len(asked)
        assert cli.dispatch(line) == 0, line
        assert len(asked) == before + 1, line
        verb, arguments = asked[-1]
        source = arguments.get("source")
        if verb in ("train", "pretrain"):
            config = load_config(source, arguments["overrides"])  # the preset is there, its fields are valid
            assert (config.method == "objectness") == (verb == "pretrain")
        if verb == "compare" and not source.startswith("studies/"):  # every row of the study is valid
            names = ("methods", "rows", "settings", "seeds", "orders", "scale")
            given = [arguments.get(name, "" if name in names[:3] else None) for name in names]
            place = str(ROOT / source) if source.startswith("docs/") else source
            assert plan(compare_command._study(place, *given), arguments["overrides"]).runs
        if verb == "check" and source not in NAMES and not source.startswith(NAMES) and "-" in source:
            assert source == "my-data" or isinstance(load_config(source, arguments["overrides"]), RunConfig)
        if verb == "evaluate" and ":" in arguments["data"]:
            assert arguments["data"].partition(":")[0] in NAMES


def test_the_recorded_verbs_are_the_real_ones() -> None:
    """Else the test above would show nothing."""
    assert cli.VERBS["eval"] is eval_command.evaluate
    with pytest.raises(cli.UsageError, match="Unrecognized options"):
        cli.dispatch(["eval", "model", "--data", "shapes", "--nonsense", "1"])
    assert blocks("```console\n$ comastre x\n```", "console") == ["$ comastre x\n"]


@pytest.fixture
def workplace(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the guide "my own data" speaks of."""
    random = np.random.default_rng(0)
    for name, classes in {
        "my-data": ("disk", "star"),
        "other-data": ("sheep and goats", "tractor", "sky", "shadow"),
    }.items():
        for kind in ("images", "masks", "images/farm", "masks/farm"):
            (tmp_path / name / kind).mkdir(parents=True)
        for number in range(12):
            place = f"farm/{number}.png" if number % 2 else f"{number}.png"
            pixels = random.integers(0, 256, (32, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / "images" / place)
            mask = random.integers(0, len(classes) + 1, (4, 5)).repeat(8, axis=0).repeat(8, axis=1)
            Image.fromarray(mask.astype(np.uint8)).save(tmp_path / name / "masks" / place)
        (tmp_path / name / "classes.txt").write_text("\n".join(classes) + "\n")
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    Image.fromarray(random.integers(0, 256, (32, 40, 3), dtype=np.uint8)).save(tmp_path / "photos" / "deep" / "a.jpg")
    (tmp_path / "names.yaml").write_text(blocks(text_of("my-own-data"), "yaml")[0].replace(" sheep ", " ring "))
    for name in ("my-model", "new-model"):
        (tmp_path / name).symlink_to(tiny_bundle)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMASTRE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_cheap_commands_of_the_guide_to_own_data_run(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = ("learn", "import-model", "convert", "undo")
    cheap = [line for line in commands("my-own-data") if line[0] not in long]
    assert {line[0] for line in cheap} == {"data", "predict", "eval", "log", "diff"}
    for line in cheap:
        assert cli.dispatch(line) == 0, capsys.readouterr()
    assert (workplace / "results" / "deep" / "a.overlay.jpg").is_file()
    assert (workplace / "scores.json").is_file()
    assert "sheep and goats as ring" in capsys.readouterr().out


def test_presets_and_files_that_the_guides_name_are_there() -> None:
    links = files = 0
    for page in PAGES:
        text = text_of(page)
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            links += 1
            assert "://" in link or (ROOT / "docs" / link).is_file(), f"{page}: {link}"
        for file in re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`", text):
            files += 1
            places = (ROOT / "src" / "comastre" / file, ROOT / file)
            assert any(place.is_file() for place in places) or "aerial" in file, f"{page}: {file}"
    assert links > 0 and files > 0, "the test finds none of them any more"


def test_flags_in_the_text_exist() -> None:
    """Also those that stand in a table, not in a console."""
    known = {field.name for method in methods() for field in cli.config_fields(method)}
    own = {"help"} | {
        name.rstrip("_")
        for verb in (*cli.VERBS.values(), *cli.DATA_VERBS.values())
        for name in inspect.signature(verb).parameters
    }
    flags = [(page, flag) for page in PAGES for flag in re.findall(r"`[^`\n]*?--([\w.-]+)", text_of(page))]
    assert len(flags) > 10, "the test finds none of them any more"
    for page, flag in flags:
        name = flag.replace("-", "_")
        found = name in own or name in known or any(full.endswith(f".{name}") for full in known)
        assert found, f"{page}: --{flag}"


def test_the_readme_links_every_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(docs/{page}.md)" in text for page in PAGES)


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", text_of(page), flags=re.MULTILINE)


def test_links_to_headings_lead_there() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([\w-]*)(?:\.md)?#([^)]+)\)", text_of(page)):
            found = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(target or page)]
            assert anchor in found, f"{page}: {target}#{anchor}"


def test_fields_that_the_specification_names_exist() -> None:
    known = {field.name for method in methods() for field in cli.config_fields(method)}
    sections = {part for name in known for part in name.split(".")[:-1]}
    named = re.findall(r"`(\w+)\.(\w+)`", text_of("specification"))
    fields = [f"{section}.{field}" for section, field in named if section in sections]
    assert len(fields) > 50
    for field in fields:
        assert any(f".{name}".endswith(f".{field}") for name in known), field


def test_what_the_code_cites_of_these_pages_is_there() -> None:
    """A citation is the page and a heading: `docs/specification.md, Matching`."""
    sources = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*")]
    cited = 0
    for path in sources:
        if path.suffix not in (".py", ".yaml") or path == Path(__file__):
            continue
        text = re.sub(r"\s*\n[\s#]*", " ", path.read_text(encoding="utf-8"))  # a citation may go over two lines
        for page, rest in re.findall(r"docs/([\w-]+)\.md([^.;)\"]*)", text):
            assert page in PAGES, f"{path}: docs/{page}.md"
            if rest.startswith(", "):
                found = [heading for heading in headings(page) if re.match(rf", {re.escape(heading)}\b", rest)]
                assert found, f"{path}: docs/{page}.md{rest}"
                cited += 1
    assert cited > 10


# --- the Python of the guides ----------------------------------------------------------------------------------------


def executed(page: str) -> dict[str, Any]:
    (code,) = blocks(text_of(page), "python")
    names: dict[str, Any] = {}
    exec(compile(code, f"{page}.md", "exec"), names)
    return names


@pytest.mark.timeout(120)
def test_the_training_loop_of_the_guide_learns_all_steps() -> None:
    names = executed("how-it-works")
    assert names["model"].tasks == (6, 2, 2) and names["total"].isfinite()


def test_the_package_of_the_guide_adds_a_method_that_keeps_its_promises(tmp_path: Path) -> None:
    """The files are written where the guide says, installed by pip, and its own test is run."""
    for body in blocks(text_of("add-a-method"), "toml", "python"):
        name, _, content = body.removeprefix("# ").partition("\n")
        file = tmp_path / "package" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    target = tmp_path / "installed"
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(tmp_path / "package")], check=True)
    paths = [str(target), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    here = tmp_path / "package" / "tests"
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here)]
    done = subprocess.run(test, env=environment, cwd=here, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    command = [sys.executable, "-m", "comastre", "train", "shapes-6-2", "--method", "objectness-only", "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert re.search(r"--objectness_only\.strength +5\.0 +Weight of what is kept\.", shown)


@pytest.fixture
def aerial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package of the guide, installed as its pyproject.toml says, in a folder of its own."""
    page = text_of("add-a-dataset")
    site = tmp_path / "site"
    for code in blocks(page, "python"):
        file = site / code.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
    (site / "aerial" / "__init__.py").touch()
    (project,) = (tomllib.loads(text) for text in blocks(page, "toml"))
    facts = site / f"{project['project']['name']}-{project['project']['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 1.0\n")
    for group, entries in project["project"]["entry-points"].items():
        lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (facts / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("COMASTRE_CACHE", str(tmp_path / "cache"))
    installed.cache_clear()
    yield site
    installed.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("aerial", "test_aerial")]:
        del sys.modules[name]


def test_the_dataset_of_the_guide_reads_what_it_says(aerial: Path, tmp_path: Path) -> None:
    importlib.import_module("test_aerial").test_aerial_keeps_its_promises(tmp_path)
    training, _ = build_datasets(DataConfig(dataset="aerial", root=str(tmp_path)))
    assert training[0].semantic[0].tolist() == [0] * 4 + [2] * 4 + [255] * 4
    assert training.presence() == [frozenset({2})]
    (tmp_path / "train" / "a.mask.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"a\.mask\.png cannot be read"):
        training[0]


def test_the_commands_of_the_guide_to_datasets_run(
    aerial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    importlib.import_module("test_aerial").test_aerial_keeps_its_promises(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    listed, checked, trained = commands("add-a-dataset")
    assert cli.dispatch(listed) == 0
    assert "aerial:FOLDER" in capsys.readouterr().out
    assert cli.dispatch(checked) == 1  # the file that the test wrote shows no building
    said = capsys.readouterr().out
    assert "aerial: 2 classes, 1 training and 1 validation images" in said
    assert "Class 1 (building)" in said
    assert trained[:2] == ["train", "shapes-6-2"]


def test_options_of_the_guide_choose_the_data(aerial: Path, tmp_path: Path) -> None:
    spec = find_dataset("aerial")
    for city in ("graz", "linz"):
        (tmp_path / city).mkdir()
        importlib.import_module("test_aerial").test_aerial_keeps_its_promises(tmp_path / city)
        config = DataConfig(dataset="aerial", root=str(tmp_path), options={"city": city})
        check_dataset(spec, config)
