"""Who may train in a run directory: one living process, and anybody after it has ended, however it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from comastre.config.run_files import HOLDER, LOCK
from comastre.errors import UserError
from comastre.training import lock
from comastre.training.directory import move_aside
from comastre.training.lock import Holder, holder_of, is_held, locked

HOLD = """
import sys, time
from pathlib import Path
from comastre.training.lock import locked
with locked(Path(sys.argv[1])):
    {more}
    print("held", flush=True)
    time.sleep(60)
"""
# As a loader process does: it lives on for a while after its parent was killed.
FORK = "import os\n    if os.fork() == 0:\n        time.sleep(2)\n        os._exit(0)"
# The process itself ends, and only what it left behind holds the lock.
RAW = """
import fcntl, sys, time
with open(sys.argv[1], "a+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@contextmanager
def process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "held\n"
        try:
            yield started
        finally:
            started.kill()


def test_the_holder_is_named_as_long_as_it_holds(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    with locked(out):
        assert holder_of(out) == Holder(os.getpid(), socket.gethostname())
        assert is_held(out)
    assert holder_of(out) is None
    assert not is_held(out)
    with locked(out):  # and again
        assert is_held(out)


def test_who_holds_it_may_take_it_again_but_no_other_thread(tmp_path: Path) -> None:
    refusals: list[str] = []

    def other() -> None:
        try:
            with locked(tmp_path):
                refusals.append("none")
        except UserError as error:
            refusals.append(str(error))

    with locked(tmp_path):
        with locked(tmp_path / "." / ".." / tmp_path.name):
            assert is_held(tmp_path)
        assert is_held(tmp_path)  # the inner one does not give it away
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refusals) == 1 and "is in use by" in refusals[0]
    assert not is_held(tmp_path)


def test_it_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert not is_held(tmp_path)
    with locked(tmp_path):
        pass


def test_another_process_is_named_and_looking_does_not_disturb_it(tmp_path: Path) -> None:
    with process(HOLD.format(more="pass"), str(tmp_path)) as other:
        for _ in range(2):  # the first who tries must not take the name away from the second
            assert is_held(tmp_path)
            with (
                pytest.raises(UserError, match=f"in use by process {other.pid} on {socket.gethostname()}: wait for it"),
                locked(tmp_path),
            ):
                pytest.fail("two at a time")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("more", ["pass", FORK], ids=["alone", "with a loader process"])
def test_what_a_killed_process_held_is_taken_over(tmp_path: Path, more: str) -> None:
    with process(HOLD.format(more=more), str(tmp_path)) as other:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert holder_of(tmp_path) == Holder(other.pid, socket.gethostname())
        assert not is_held(tmp_path)
        with locked(tmp_path):
            assert holder_of(tmp_path) == Holder(os.getpid(), socket.gethostname())


@pytest.mark.skipif(sys.platform == "win32", reason="holds the lock by fcntl")
def test_orphans_of_a_killed_process_are_waited_for_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HOLDER).write_text(f"process 999999999 on {socket.gethostname()}\n")
    began = time.monotonic()
    with process(RAW, str(tmp_path / LOCK), "1.5"), locked(tmp_path):
        assert time.monotonic() - began > 1.0
    (tmp_path / HOLDER).write_text(f"process 999999999 on {socket.gethostname()}\n")
    monkeypatch.setattr(lock, "_ORPHANS", 0.2)
    with (
        process(RAW, str(tmp_path / LOCK), "60"),
        pytest.raises(UserError, match="in use by process 999999999"),
        locked(tmp_path),
    ):
        pytest.fail("two at a time")


@pytest.mark.skipif(sys.platform == "win32", reason="holds the lock by fcntl")
@pytest.mark.parametrize(
    ("line", "name"),
    [("process 1 on another-machine", "process 1 on another-machine"), ("", "another process"), ("x", "another")],
)
def test_a_holder_of_whom_nothing_is_known_is_left_alone(tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / HOLDER).write_text(line)
    with (
        process(RAW, str(tmp_path / LOCK), "60"),
        pytest.raises(UserError, match=f"in use by {name}"),
        locked(tmp_path),
    ):
        pytest.fail("two at a time")


@pytest.mark.parametrize("error", [NotImplementedError("no flock"), OSError(37, "no locks")])
def test_without_locks_the_name_of_the_holder_has_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with locked(tmp_path):
        assert is_held(tmp_path)
    (tmp_path / HOLDER).write_text(f"process {os.getppid()} on {socket.gethostname()}\n")
    with pytest.raises(UserError, match=f"in use by process {os.getppid()} "), locked(tmp_path):
        pytest.fail("two at a time")
    (tmp_path / HOLDER).write_text(f"process 999999999 on {socket.gethostname()}\n")
    with locked(tmp_path):
        assert is_held(tmp_path)


def test_what_was_put_aside_is_trained_by_nobody(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with locked(run):
        move_aside(run)
    assert not is_held(tmp_path / "run.old-1")
    with locked(run):
        assert is_held(run)
