"""Windows and macOS, as far as can be told from here: no call that only Linux has, no file read in a local encoding."""

from __future__ import annotations

import ast
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import comastre
from comastre.training.launch import _passing_on_signals

ROOT = Path(comastre.__file__).parent
MODULES = sorted(
    ".".join(("comastre", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for file in ROOT.rglob("*.py")
)

# Other packages are loaded first, as this system has them; then ours again, as if on Windows.
ELSEWHERE = f"""
import importlib, os, signal, sys
modules = {MODULES!r}
for name in modules:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.split(".")[0] == "comastre"]:
    del sys.modules[name]

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"no {{name}} on Windows", name=name)

missing = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
for name in missing:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing)
for holder, names in (
    (os, "fork forkpty sched_getaffinity getuid geteuid getgid getpgid setsid killpg uname statvfs mkfifo chown"),
    (signal, "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGQUIT SIGPIPE alarm setitimer pthread_kill sigwait"),
):
    for name in names.split():
        delattr(holder, name)
sys.platform = "win32"
for name in modules:
    importlib.import_module(name)
from comastre.data.parallel import _available_processors
from comastre.training.stopping import StopRequest
assert _available_processors() >= 1
with StopRequest().listening():
    pass
"""


def test_every_module_can_be_imported_without_what_only_posix_has() -> None:
    assert len(MODULES) > 100
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: file.relative_to(ROOT).as_posix())
def test_text_is_read_and_written_as_utf8(file: Path) -> None:
    """Without an encoding, Windows takes that of the country."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg for keyword in node.keywords}
        if called in ("read_text", "write_text"):
            assert "encoding" in given, f"{file}:{node.lineno}"
        if isinstance(node.func, ast.Name) and called == "open":
            modes = [argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)]
            assert "encoding" in given or any("b" in str(mode) for mode in modes), f"{file}:{node.lineno}"


@pytest.mark.parametrize(("platform", "passed_on"), [("linux", [(7, signal.SIGTERM)]), ("win32", [])])
def test_a_signal_is_passed_on_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch, platform: str, passed_on: list[tuple[int, int]]
) -> None:
    """On Windows os.kill ends a process at once, which then saves nothing."""
    sent: list[tuple[int, int]] = []
    children: list[Mock] = []
    monkeypatch.setattr(multiprocessing, "active_children", lambda: children)
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    monkeypatch.setattr(sys, "platform", platform)
    with _passing_on_signals():
        children = [Mock(pid=7)]
        signal.raise_signal(signal.SIGTERM)
    assert sent == passed_on


def test_a_letter_that_the_terminal_lacks_does_not_end_a_command() -> None:
    program = (
        "from comastre.cli import main as cli; from comastre.text import say\n"
        "cli.VERBS['presets'] = lambda: say('learned 猫') or 0\n"
        "cli.main(['presets'])"
    )
    environment = os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [b"learned", b"?"], b"")
