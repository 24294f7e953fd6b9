"""Datasets that other packages bring: found by their entry points, usable wherever ours are, harmless when broken."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from other_package import write_package

from comastre.cli import main as cli
from comastre.config import datasets as registry
from comastre.config.datasets import DatasetSpec, datasets, find_dataset, installed
from comastre.config.run import DataConfig
from comastre.config.settings import differences, load_config
from comastre.data.build import build_datasets
from comastre.data.sources import DataSource, open_split, parse_source
from comastre.errors import UserError
from small_data import write_image, write_mask

SPEC = """
from comastre.config.datasets import DatasetSpec

STRIPES = DatasetSpec(
    name="stripes",
    title="Stripes of the world",
    about="vertical stripes",
    implementation="stripes_data:build",
    validation_fields=("options.year",),
    signs=("STRIPES",),
)
"""
DATA = """
from comastre.data.files import FileDataset, MaskReader, Record, data_root, files_below

def build(config, split):
    folder = data_root(config.root, "stripes") / split
    images = files_below(folder, (".jpg",))
    names = ("left", "right") if config.options.get("year", 2000) < 2020 else ("left", "right", "middle")
    records = [Record(image.stem, image, image.with_suffix(".png")) for image in images]
    return FileDataset("stripes", split, names, [(0, 0, 0)] * (len(names) + 1), records, MaskReader(len(names)))
"""
Install = Callable[[str, Mapping[str, str], Mapping[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package beside this one for the length of a test."""
    before = set(sys.modules)

    def put(package: str, modules: Mapping[str, str], entries: Mapping[str, str]) -> None:
        monkeypatch.syspath_prepend(str(write_package(tmp_path / f"site-{package}", package, modules, entries)))
        installed.cache_clear()

    yield put
    installed.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("stripes"):
            del sys.modules[name]


@pytest.fixture
def stripes(install: Install, tmp_path: Path) -> Path:
    """An installed dataset, and a folder that holds it."""
    install("world-stripes", {"stripes_spec": SPEC, "stripes_data": DATA}, {"stripes": "stripes_spec:STRIPES"})
    root = tmp_path / "STRIPES"
    for split, labels in (("train", ((0, 1), (2, 255))), ("val", ((1, 2),))):
        for number, each in enumerate(labels):
            write_image(root / split / f"{number}.jpg")
            write_mask(root / split / f"{number}.png", *each)
    return root


def test_our_own_datasets_use_the_same_door() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"][registry.GROUP]
    assert set(entries) <= set(datasets())
    assert {installed().packages[name] for name in entries} == {"comastre"}
    assert installed().problems == {}
    assert next(iter(datasets())) == "shapes"  # nothing is needed for it


def test_specs_are_read_without_anything_heavy() -> None:
    program = "import sys; from comastre.config.datasets import datasets; assert len(datasets()) >= 6; "
    program += "print([name for name in ('torch', 'numpy', 'PIL') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_dataset_of_another_package_is_one_of_ours_to_everybody(
    stripes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training, validation = build_datasets(DataConfig(dataset="stripes", root=str(stripes)))
    assert (len(training), len(validation), training.class_names) == (2, 1, ("left", "right"))
    assert parse_source(f"stripes:{stripes}") == DataSource("stripes", stripes)
    assert len(open_split(parse_source(f"stripes:{stripes}"), "all")) == 3
    with pytest.raises(UserError, match=f"looks like stripes: write stripes:{stripes}"):
        parse_source(stripes)
    with pytest.raises(UserError, match="needs the folder that holds it: write stripes:FOLDER"):
        parse_source("stripes")
    with pytest.raises(UserError, match=r"there is no data nothing: .*, shapes, .*, stripes:FOLDER or voc:FOLDER"):
        parse_source("nothing")
    assert cli.dispatch(["data", "check", f"stripes:{stripes}"]) == 0
    assert "stripes: 2 classes, 2 training and 1 validation images" in capsys.readouterr().out
    assert cli.dispatch(["data", "list"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["stripes:FOLDER", "world-stripes", "vertical", "stripes"] in listed


def test_options_reach_the_dataset_and_count_as_settings(stripes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"data": {"dataset": "stripes", "root": str(stripes), "options": {"year": 2024}}}
    config = load_config("shapes-joint", given)
    assert build_datasets(config.data)[0].class_names == ("left", "right", "middle")
    plain = load_config("shapes-joint", {"data": {"dataset": "stripes", "root": str(stripes)}})
    assert [str(found) for found in differences(plain, config)] == ["data.options.year: None -> 2024"]
    assert [str(found) for found in differences(config, plain)] == ["data.options.year: 2024 -> None"]
    assert cli.dispatch(["data", "check", f"stripes:{stripes}", "--data.options", "{year: 2024}"]) == 1
    said = capsys.readouterr().out
    assert "stripes: 3 classes" in said
    assert "Class 3 (middle)" in said  # no image shows it


def test_a_model_is_scored_on_it(
    stripes: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.yaml"
    names.write_text("left: disk\nright: star\n")
    given = ["eval", str(tiny_bundle), "--data", f"stripes:{stripes}", "--map", str(names), "--split", "all"]
    assert cli.dispatch(given) == 0
    said = "".join(capsys.readouterr().out.split())  # a long path wraps
    assert f"stripes:{stripes}:3images,2classes" in said


# --- what is broken --------------------------------------------------------------------------------------------------

BROKEN = {
    "import": ("import no_such_module", "No module named 'no_such_module'"),
    "attribute": ("", "has no attribute 'STRIPES'"),
    "type": ("STRIPES = 'stripes'", "it is str, not DatasetSpec"),
    "name": (SPEC.replace('name="stripes"', 'name="bars"'), "it calls itself bars"),
    "colon": (SPEC.replace('name="stripes"', 'name="a:b"'), "'a:b' is no name for a dataset"),
    "path": (SPEC.replace("stripes_data:build", "stripes_data.build"), "must be written module:function"),
    "exit": ("raise RuntimeError('on strike')", "on strike"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_package_is_named_and_breaks_nobody_else(
    what: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    source, reason = BROKEN[what]
    install("world-stripes", {"stripes_spec": source}, {"stripes": "stripes_spec:STRIPES"})
    assert find_dataset("voc").title == "Pascal VOC"
    assert "stripes" not in datasets()
    sentence = r"the dataset stripes of the package world-stripes cannot be used .*" + reason.replace(":", ".")
    with pytest.raises(UserError, match=sentence):
        build_datasets(DataConfig(dataset="stripes"))
    with pytest.raises(UserError, match=sentence):
        parse_source("stripes:somewhere")
    assert cli.dispatch(["data", "list"]) == 1
    said = capsys.readouterr()
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert "voc:FOLDER" in said.out


def test_an_implementation_that_cannot_be_imported_names_its_package(install: Install) -> None:
    install("world-stripes", {"stripes_spec": SPEC}, {"stripes": "stripes_spec:STRIPES"})
    with pytest.raises(UserError, match="stripes of the package world-stripes cannot be opened, as stripes_data"):
        build_datasets(DataConfig(dataset="stripes"))


def test_nobody_takes_our_names(install: Install) -> None:
    install("thief", {"stripes_thief": SPEC.replace('"stripes"', '"voc"')}, {"voc": "stripes_thief:STRIPES"})
    assert find_dataset("voc").title == "Pascal VOC"
    assert installed().problems["voc"].startswith("voc is given by the packages comastre and thief")


def test_a_name_that_two_packages_give_is_nobodys(install: Install) -> None:
    for number in ("one", "two"):
        install(number, {f"stripes_{number}": SPEC}, {"stripes": f"stripes_{number}:STRIPES"})
    with pytest.raises(UserError, match="dataset stripes is given by the packages one and two: uninstall"):
        find_dataset("stripes")


def test_without_any_package_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "installed", lambda: registry.Found[DatasetSpec]({}, {}, {}))
    with pytest.raises(UserError, match="no dataset is known, not even our own: install"):
        find_dataset("voc")
