"""The registry of methods: what other packages bring is found, and what is wrong with it harms nobody else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from comastre.config import methods
from comastre.config.overrides import UsageError, config_fields, find_field, split_overrides
from comastre.config.run import RunConfig
from comastre.config.settings import differences, dump_yaml, load_config
from comastre.errors import UserError
from comastre.methods.build import build_method, setup_of

# A method of another package, as its authors would write it.
SOURCE = """
from comastre.config.methods import MethodSpec
from comastre.config.sections import MethodConfig, OptimiserConfig


class BackgroundConfig(MethodConfig):
    temperature: float = 2.0
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=0.01)

    @classmethod
    def for_size(cls, size):
        return {"temperature": 1.0} if size == "tiny" else {}


def spec(name, **rest):
    return MethodSpec(name, name.upper(), "models the background", BackgroundConfig, "nowhere_at_all:build", **rest)


BG = spec("bg")
HYPHENS = spec("bg-plus-2")
OURS = spec("comastre")
NUMBER = 3
"""

VARIANTS = ("comastre", "finetune", "joint", "objectness")
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make packages with entry points appear on the path, as pip would."""
    packages: list[str] = []

    def appear(package: str, source: str = SOURCE, **entries: str) -> None:
        folder = tmp_path / package
        information = folder / f"{package}-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / f"{package}.py").write_text(source)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = {package}:{value}" for name, value in entries.items()]
        (information / "entry_points.txt").write_text("\n".join(["[comastre.methods]", *lines]) + "\n")
        monkeypatch.syspath_prepend(folder)
        packages.append(package)
        methods.installed.cache_clear()

    yield appear
    for package in packages:
        sys.modules.pop(package, None)
    methods.installed.cache_clear()


def test_our_own_methods_come_first_and_say_what_they_are(install: Install) -> None:
    install("stranger", bg="BG")
    *ours, stranger = methods.methods()
    assert stranger == "bg" and ours == sorted(ours) and {*VARIANTS} < {*ours}
    assert methods.find("joint").all_at_once and not methods.find("comastre").all_at_once
    assert [methods.find(name).section_name for name in (*VARIANTS, "bg")] == ["comastre"] * 4 + ["bg"]
    assert all(spec.title and spec.about for spec in methods.methods().values())


def test_a_method_is_found_by_name_and_near_names_are_offered(install: Install) -> None:
    install("stranger", bg_plus_2="HYPHENS")
    assert methods.find("bg-plus-2").section_name == "bg_plus_2"
    with pytest.raises(UserError, match=r"there is no method 'bg-plus': did you mean bg-plus-2\?"):
        methods.find("bg-plus")
    with pytest.raises(UserError, match=r"there is no method 'finetuning': did you mean finetune or "):
        methods.find("finetuning")
    with pytest.raises(UserError, match="no method 'zz': `comastre methods` lists those that are installed"):
        methods.find("zz")


def test_a_title_is_known_even_of_what_is_not_installed() -> None:
    assert methods.title_of("comastre") == "CoMasTRe"
    assert methods.title_of("of-another-machine") == "of-another-machine"


@pytest.mark.parametrize(
    ("source", "value", "problem"),
    [
        ("import nothing_of_the_kind", "BG", "No module named 'nothing_of_the_kind'"),
        ("raise SystemError('boom')", "BG", "boom"),
        ("", "BG", "module 'stranger' has no attribute 'BG'"),
        (SOURCE, "NUMBER", "it is int, not MethodSpec"),
        (SOURCE, "HYPHENS", "it calls itself bg-plus-2"),
        (SOURCE + "X = spec('BG')", "X", "'BG' is no name for a method: use small letters, digits and hyphens"),
        (SOURCE + "X = MethodSpec('bg', 'BG', '', dict, 'a:b')", "X", "its config must be a subclass of MethodConfig"),
        (SOURCE + "X = spec('bg', gives=frozenset({'poems'}))", "X", "poems is none of semantic, panoptic, instance"),
        (SOURCE + "X = MethodSpec('bg', 'BG', '', BackgroundConfig, 'os')", "X", "'os' must be written module:name"),
    ],
)
def test_a_broken_entry_point_is_named_with_its_package_and_breaks_no_other(
    install: Install, source: str, value: str, problem: str
) -> None:
    install("stranger", source, bg=value)
    install("neighbour", SOURCE, bg_plus_2="HYPHENS")
    with pytest.raises(UserError) as refused:
        methods.find("bg")
    sentence = str(refused.value)
    assert sentence.startswith(f"the method bg of the package stranger cannot be used (stranger:{value}: ")
    assert problem in sentence and sentence.endswith("update or uninstall that package")
    *ours, neighbour = methods.methods()
    assert {*VARIANTS} < {*ours} and neighbour == "bg-plus-2"


def test_nobody_takes_the_name_of_one_of_ours(install: Install) -> None:
    install("stranger", comastre="OURS")
    assert "given by the packages comastre and stranger" in methods.installed().problems["comastre"]
    assert methods.find("comastre").title == "CoMasTRe"


def test_a_name_that_two_packages_give_is_nobodys(install: Install) -> None:
    install("stranger", SOURCE, bg="BG")
    install("thief", SOURCE, bg="BG")
    with pytest.raises(UserError, match="bg is given by the packages stranger and thief: uninstall all but one"):
        methods.find("bg")
    assert {*VARIANTS} < {*methods.methods()} and "bg" not in methods.methods()


def test_a_method_whose_code_is_missing_is_refused_in_one_sentence(install: Install) -> None:
    install("stranger", bg="BG")
    with pytest.raises(UserError, match=r"method bg cannot be used: nowhere_at_all:build is not there .* install"):
        build_method("bg", setup_of(RunConfig(method="bg")))


# --- a method's own section ------------------------------------------------------------------------------------------


def test_a_run_has_the_section_of_its_method_with_that_methods_defaults(install: Install) -> None:
    install("stranger", bg="BG")
    config = load_config("shapes-6-2", {"method": "bg"})
    assert config.method_settings.temperature == 1.0
    assert RunConfig(method="bg").method_settings.temperature == 2.0
    # What all methods share on a preset is there; what is CoMasTRe's own is not.
    assert (config.size, config.data.crop, config.data.later_scale) == ("tiny", 64, None)
    assert config.method_settings.optimiser.learning_rate == 0.01
    assert "comastre" not in config.model_dump()
    assert "bg:\n  optimiser:" in dump_yaml(config)


def test_a_section_given_in_part_keeps_the_methods_other_defaults(install: Install) -> None:
    install("stranger", bg="BG")
    config = load_config("shapes-6-2", {"method": "bg", "bg": {"optimiser": {"clip": 5}}})
    assert (config.method_settings.optimiser.clip, config.method_settings.optimiser.learning_rate) == (5.0, 0.01)
    # And `--help` shows what it is.
    assert find_field("bg.optimiser.learning_rate", "bg").default == 0.01


def test_a_written_run_of_a_strangers_method_reads_back_equal(install: Install, tmp_path: Path) -> None:
    install("stranger", bg="BG")
    config = load_config("shapes-6-2", {"method": "bg", "bg": {"temperature": 3.5}})
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    assert load_config(tmp_path / "config.yaml") == config


def test_fields_on_the_command_line_are_those_of_the_method(install: Install) -> None:
    install("stranger", bg="BG")
    assert split_overrides(["--temperature", "3", "--method", "bg"], ()) == (
        {"bg": {"temperature": 3}, "method": "bg"},
        [],
    )
    assert split_overrides(["--learning_rate", "3"], (), method="bg")[0] == {"bg": {"optimiser": {"learning_rate": 3}}}
    # The older name of a rate is that of whichever method it is.
    assert find_field("training.clip", "bg").name == "bg.optimiser.clip"
    names = [field.name for field in config_fields("bg")]
    assert "bg.temperature" in names and not [name for name in names if name.startswith("comastre.")]
    with pytest.raises(UsageError, match="there is no field --temperature"):
        split_overrides(["--temperature", "3"], ())


def test_a_field_of_another_methods_section_is_told_so(install: Install, tmp_path: Path) -> None:
    install("stranger", bg="BG")
    with pytest.raises(UsageError, match=r"--bg\.temperature is a field of the method bg, but the method is comastre"):
        split_overrides(["--bg.temperature", "3"], ())
    with pytest.raises(UsageError, match=r"--comastre\.weights\.mask_kd is a field of the method comastre, but .* bg"):
        split_overrides(["--method=bg", "--comastre.weights.mask_kd", "3"], ())
    file = tmp_path / "mine.yaml"
    file.write_text("base: shapes-6-2\nmethod: finetune\nbg: {temperature: 3}\n")
    with pytest.raises(UserError, match="no field bg: it is a field of the method bg, but the method is finetune"):
        load_config(file)
    file.write_text("base: shapes-6-2\nmethod: bg\ncomastre: {weights: {mask_kd: 3}}\n")
    with pytest.raises(UserError, match=r"no field comastre: it is a field of the method comastre, but .* is bg"):
        load_config(file)


def test_a_mistake_in_a_strangers_section_names_the_section(install: Install) -> None:
    install("stranger", bg="BG")
    with pytest.raises(UserError, match=r"bg\.temperature is 'hot' but must be a valid number"):
        load_config("shapes-6-2", {"method": "bg", "bg": {"temperature": "hot"}})
    with pytest.raises(UserError, match=r"there is no field bg\.temprature: did you mean bg\.temperature\?"):
        load_config("shapes-6-2", {"method": "bg", "bg": {"temprature": 1}})


def test_runs_of_two_methods_differ_by_whole_sections(install: Install) -> None:
    install("stranger", bg="BG")
    found = {each.field: each for each in differences(RunConfig(), RunConfig(method="bg"))}
    assert (found["bg.temperature"].old, found["bg.temperature"].new) == (None, 2.0)
    assert (found["comastre.weights.objectness"].old, found["comastre.weights.objectness"].new) == (2.0, None)
    assert not any(name.startswith(("data.", "training.", "backbone.")) for name in found)


def test_methods_are_known_without_torch() -> None:
    code = "import sys; from comastre.config import methods; methods.methods(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
