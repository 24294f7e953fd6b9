"""The command line from outside: speed of help, exit codes, one sentence per error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
from command import run

from comastre import __version__
from comastre.cli import main as cli
from comastre.errors import UserError


def test_help_is_quick_and_does_not_import_torch() -> None:
    script = (
        "import sys, comastre.cli.main\n"
        "try: comastre.cli.main.main(['--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'torchvision', 'timm', 'matplotlib', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    after = os.times()
    assert done.returncode == 0, done.stderr
    # Processor time, which is the waiting time on an idle machine: other work on a busy one must not decide.
    assert (after.children_user + after.children_system) - (before.children_user + before.children_system) < 1.0
    assert all(verb in done.stdout for verb in cli.VERBS)


def test_import_of_the_package_does_not_import_torch() -> None:
    script = "import sys, comastre; assert 'torch' not in sys.modules and 'pydantic' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_help_lists_only_verbs_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "--help")
    assert done.code == 0
    listed = re.findall(r"^  (\w[\w-]*) ", done.out, flags=re.MULTILINE)
    assert listed == list(cli.VERBS)


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_has_help(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    done = run(capsys, verb, "--help")
    assert done.code == 0
    assert f"usage: comastre {verb}" in done.out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "--version")
    assert (done.code, done.out) == (0, f"comastre {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["trian"], 2, "no command 'trian': did you mean train"),
        (["train", "shapes-6-2"], 2, "Missing from comastre train: --out"),
        (["train", "shapes-6-2", "again", "--out", "run"], 2, "Unrecognized options: again"),
        (["train", "shapes-6-2", "--out", "run", "--iteratons", "3"], 2, "no field --iteratons: did you mean"),
        (["train", "shapes-9-9", "--out", "run"], 1, "shapes-9-9 is neither a preset nor a file"),
        (["train", "shapes-6-2", "--out", "run", "--crop", "0"], 1, "data.crop is 0 but must be greater than"),
        (["presets", "--all"], 2, "Unrecognized options: --all"),
    ],
)
def test_errors_are_one_line_with_the_right_exit_code(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    done = run(capsys, *arguments)
    assert done.code == code
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_help_breaks_its_lines_where_the_screen_ends_not_where_the_source_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    help_of_learn = " ".join(run(capsys, "learn", "--help").out.replace("│", " ").split())
    assert "or what COCO, YOLO, Label Studio" in help_of_learn
    lines = [line.strip(" │") for line in run(capsys, "learn", "--help").out.splitlines()]
    assert not {"YOLO,", "their"} & set(lines)


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_help_fits_the_screen_and_says_no_default_that_says_nothing(width: int, encoding: str) -> None:
    environment = {**os.environ, "COLUMNS": str(width), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "comastre", "learn", "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode(encoding)
    usage, first, *others = shown.split("\n\n")
    assert usage == "usage: comastre learn [-h] [OPTIONS] MODEL"
    told = (
        "Teach a model the new classes of your own data, without its old images and without forgetting its old classes."
    )
    assert " ".join(first.split()) == told
    assert max(map(len, shown.splitlines())) <= width
    assert all(line.strip(" │") for line in others[-1].splitlines())
    assert "--old-val DATA" in others[-1] and "(required)" in others[-1]
    assert "None" not in shown and "default: False" not in shown


def test_no_arguments_shows_help_as_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys)
    assert done.code == 2
    assert "usage:" in done.out


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(UserError):
        cli.main(["train", "shapes-9-9", "--out", "run", "--debug"])


class StoppedError(UserError):
    """An error that brings its own exit code, as an interrupted run does."""

    exit_code = 143


def fail_with(error: BaseException) -> Any:
    def verb() -> int:
        """Fails."""
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (StoppedError("saved; start again to go on"), 143, "comastre: saved; start again to go on\n"),
        (UserError("two\nlines"), 1, "comastre: two lines\n"),
        (ZeroDivisionError("oops"), 1, "ZeroDivisionError: oops (this should not happen; --debug shows where)"),
    ],
)
def test_how_a_verb_may_end(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    message: str,
) -> None:
    monkeypatch.setitem(cli.VERBS, "demo", fail_with(error))
    done = run(capsys, "demo")
    assert done.code == code
    assert message in done.err
    assert done.err.count("\n") == 1
