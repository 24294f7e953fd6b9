"""The scripts for the shell: what Tab offers, asked of the shells themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import run

from comastre.cli.completion import bash_script, fish_script, known_commands, zsh_script
from comastre.cli.main import DATA_VERBS, VERBS
from comastre.config.overrides import config_fields
from comastre.config.settings import preset_names

# Windows has a program called bash that runs elsewhere, in its subsystem for Linux.
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shells of Linux and macOS")

ASKED = {
    "comastre ": [*VERBS],
    "comastre pre": ["predict", "presets", "pretrain"],
    "comastre data ": [*DATA_VERBS],
    "comastre data prepare ": ["ade20k", "coco", "voc"],
    "comastre data prepare voc --ro": ["--root"],
    "comastre data check --proc": ["--processes"],
    "comastre data check shapes-j": ["shapes-joint"],
    "comastre train shapes-": ["shapes-6-1", "shapes-6-2", "shapes-joint"],
    "comastre train shapes-6-2 --bas": ["--base"],
    "comastre train shapes-6-2 --out run --training.it": ["--training.iterations", "--training.iterations_per_class"],
    "comastre train shapes-6-2 --continual.protocol d": ["disjoint"],
    "comastre learn model --sa": ["--same-class"],
    "comastre eval train --split ": ["all", "train", "val"],
    "comastre presets --": ["--help"],
    "comastre completion ": ["bash", "fish", "zsh"],
}
FILES = ("comastre predict model pho", "comastre train my-r", "comastre train shapes-6-2 --out my-r")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that a user may mean."""
    for name in ("photo.jpg", "my-run.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked_of_bash(line: str) -> list[str]:
    """What bash's completion function answers; empty where readline offers files instead."""
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    ask = f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; _comastre"
    program = f"set -u\n{bash_script(known_commands())}\n{ask}\n" + 'printf "%s\\n" ${COMPREPLY[@]+"${COMPREPLY[@]}"}'
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def asked_of_fish(line: str) -> list[str]:
    program = f"{fish_script(known_commands())}\ncomplete -C '{line}'"
    # As its input: one argument of a command may have 128 kB at most, and the script has more.
    done = subprocess.run(["fish", "--no-config"], input=program, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


def asked_of_zsh(line: str) -> list[str]:
    """zsh's own matching needs a terminal: compadd writes down what it is offered, and the prefix is matched here."""
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    program = (
        "compdef() { : }; _files() { print -l *(N) }; compadd() { print -l -- $found; (($#found)) }\n"
        f"{zsh_script(known_commands())}\n"
        f"words=({' '.join(repr(word) for word in words)}); CURRENT={len(words)}; _comastre"
    )
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [offer for offer in done.stdout.split() if offer.startswith(words[-1])]


SHELLS = {"bash": asked_of_bash, "fish": asked_of_fish, "zsh": asked_of_zsh}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", ASKED)
def test_tab_offers(line: str, shell: str, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    offers = [offer for offer in SHELLS[shell](line) if not (folder / offer).exists()]
    assert sorted(offers) == sorted(ASKED[line])


@pytest.mark.parametrize("line", FILES)
def test_files_are_left_to_the_shell(line: str, folder: Path) -> None:
    assert asked_of_bash(line) == []
    assert "complete -o bashdefault -o default " in bash_script(known_commands())
    if shutil.which("fish"):
        assert len(asked_of_fish(line)) == 1


@pytest.mark.parametrize("line", ["comastre eval model --split = v", "comastre eval model --split ="])
def test_bash_completes_after_an_equals_sign(line: str) -> None:
    """bash hands `--split=v` over as three words."""
    assert asked_of_bash(line)[-1:] == (["val"] if line.endswith("v") else ["all"])


@pytest.mark.parametrize("shell", SHELLS)
def test_the_printed_script_holds_every_command_preset_and_field(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    done = run(capsys, "completion", shell)
    assert (done.code, done.err) == (0, "")
    words = set(re.findall(r"[\w.-]+", done.out)) | {word.removeprefix("--") for word in re.findall(r"--\S+", done.out)}
    assert {*VERBS, *DATA_VERBS, *preset_names()} <= words
    assert {field.name for field in config_fields()} <= {word.strip("'") for word in words}


def test_what_pretrain_is_offered_exists() -> None:
    (pretrain,) = (command for command in known_commands() if command.name == "pretrain")
    assert set(pretrain.words) <= set(preset_names())


def test_another_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "completion", "tcsh")
    assert done.code == 2
    assert "tcsh" in done.err
