"""One process at a time in a run directory: who has it, and taking it."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from comastre.config.run_files import HOLDER, LOCK
from comastre.errors import UserError
from comastre.files import PARTIAL, sweep, write_whole

_ORPHANS = 15.0
"""Seconds in which loader processes notice that the training process was killed: they may hold its lock until then."""


@dataclass(frozen=True)
class Holder:
    """The process that trains a run."""

    process: int
    machine: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.machine}"

    @property
    def lives(self) -> bool:
        """Whether it is known to be alive; of another machine nothing is known."""
        return self.machine == socket.gethostname() and _exists(self.process)

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended."""
        return self.machine == socket.gethostname() and not _exists(self.process)


def _exists(process: int) -> bool:
    try:
        return bool(psutil.pid_exists(process))
    except OverflowError:  # no system counts so far: the file is damaged
        return False


def holder_of(out: Path) -> Holder | None:
    """Who has the run, or had it when it was killed; the lock itself is not touched."""
    try:
        words = (out / HOLDER).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    if len(words) != 4 or not words[1].isdecimal():
        return None
    return Holder(int(words[1]), words[3])


def is_held(out: Path) -> bool:
    """Whether a process of this machine is training the run now."""
    holder = holder_of(out)
    return holder is not None and holder.lives


_HELD: dict[Path, int] = {}
"""What this process holds, and in which thread."""


@contextmanager
def locked(out: Path, clean: bool = True) -> Iterator[None]:
    """Hold the run: a second process gets an error, the lock of a process that died is taken over.

    Whoever holds a run may call what holds it too: a lesson holds its folder before, during and after its training.
    `clean` removes what others left half written in it.
    """
    place, thread = out.resolve(), threading.get_ident()
    if _HELD.get(place) == thread:
        yield
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be made: {error.strerror}") from error
    lock = FileLock(out / LOCK)
    if not _taken(lock, out):
        holder = holder_of(out) or "another process"
        raise UserError(f"{out} is in use by {holder}: wait for it, stop it, or name another --out")
    try:
        _note_holder(out)
        _HELD[place] = thread
        if clean:
            sweep(out, f"**/.*{PARTIAL}", seconds=0.0)  # nobody else writes here now
        yield
    finally:
        _HELD.pop(place, None)
        (out / HOLDER).unlink(missing_ok=True)
        lock.release()


def _note_holder(out: Path) -> None:
    try:
        write_whole(out / HOLDER, f"{Holder(os.getpid(), socket.gethostname())}\n".encode())
    except FileNotFoundError:  # put aside by another process, which held it a moment ago
        raise UserError(f"{out} was just moved aside by another process: give the same command again") from None
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}; free some space") from error


def _taken(lock: FileLock, out: Path) -> bool:
    """Whether the lock is ours now."""
    with warnings.catch_warnings():
        # Where the file system has no locks, a file that is there or not serves; the user can do nothing about it.
        warnings.filterwarnings("ignore", message=".*flock.*")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = holder_of(out)
            if holder is None or not holder.is_dead:
                return False
            try:
                lock.acquire(timeout=_ORPHANS)
            except Timeout:
                return False
        except PermissionError as error:
            raise UserError(f"--out {out} cannot be written: {error.strerror}") from error
        except (NotImplementedError, OSError):
            # No kind of lock works here: the name of the holder has to do.
            return not is_held(out)
    return True
