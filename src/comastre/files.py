"""Writing files whole: under its final name a file is complete, or it is not there.

Every file that a run, a model or a result consists of is written here, so that one rule holds for who may read it: the
umask of the user who wrote it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path

PARTIAL = ".partial"
"""How the names of files end that are being written, and begin with a dot: a kill may leave some behind."""


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, flush to disk, then rename; several processes may write, and the last one wins whole."""
    aside, descriptor = _new_file_beside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush(path.parent)


def copy_files(source: Path, target: Path) -> None:
    """Copy a folder's files, in sub-folders too, whole and with the user's own permissions, not with the source's."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            copy_files(entry, target / entry.name)
            continue
        aside, descriptor = _new_file_beside(target / entry.name)
        try:
            with entry.open("rb") as given, os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(given, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target / entry.name)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    flush(target)


def sweep(folder: Path, pattern: str = f".*{PARTIAL}", seconds: float = 3600.0) -> None:
    """Remove what killed programs left half written in a folder; what is younger than `seconds` may be in work."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime < seconds:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def flush(path: Path) -> None:
    """Have a file's content, or a folder's renames, on the disk: a power cut could forget them otherwise."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there, and need not be
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _new_file_beside(path: Path) -> tuple[Path, int]:
    """A new hidden file in the same folder, and its descriptor; only a part of a long name fits beside the rest."""
    aside = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}{PARTIAL}")
    # 0o666 less the umask, as every program gives: `tempfile` makes files that nobody else can read.
    binary = getattr(os, "O_BINARY", 0)
    return aside, os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | binary, 0o666)
