"""Which classes each image shows: worked out once in parallel, kept in the user's cache, rebuilt when data changes.

The cache is the user's, not a file beside the data, because datasets are often shared and read-only.
`COMASTRE_CACHE` names another folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from comastre.data.parallel import each_in_parallel
from comastre.documents import read_json
from comastre.errors import UserError
from comastre.files import sweep, write_whole
from comastre.paths import user_path

VERSION = 1


@dataclass(frozen=True)
class Fingerprint:
    """Which data it is, and its state."""

    file: str
    """Name of the cache file: the same place on disk always has the same."""
    state: str
    """Changes with any name, size or time of a label file."""

    @classmethod
    def of(cls, title: str, place: str, marks: Iterable[str]) -> Fingerprint:
        state = hashlib.sha256(f"{VERSION}\n".encode())
        for mark in marks:
            state.update(f"{mark}\n".encode(errors="surrogatepass"))  # names of files may be no UTF-8
        where = hashlib.sha256(f"{title}\n{place}".encode(errors="surrogatepass")).hexdigest()[:16]
        return cls(f"presence-{re.sub(r'[^A-Za-z0-9-]', '_', title)}-{where}.json", state.hexdigest())


def cache_folder() -> Path:
    """Where indices are kept."""
    chosen = os.environ.get("COMASTRE_CACHE")
    if chosen:
        return user_path(chosen, "COMASTRE_CACHE")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "comastre" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "comastre"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comastre"


def cached_presence(
    fingerprint: Fingerprint, classes_of: Callable[[int], frozenset[int]], num: int
) -> list[frozenset[int]]:
    """The classes of images 0..num - 1, from the cache while its fingerprint is the data's."""
    path = cache_folder() / fingerprint.file
    known = _read(path, fingerprint, num)
    if known is not None:
        return known
    answers = each_in_parallel(classes_of, num, f"classes of {num:,} images")
    bad = [answer for answer in answers if isinstance(answer, UserError)]
    if bad:
        more = f" ({len(bad) - 1} more files are bad: `comastre data check` lists them)" if len(bad) > 1 else ""
        raise UserError(f"{bad[0]}{more}")
    found = [answer for answer in answers if not isinstance(answer, UserError)]
    _write(path, fingerprint, found)
    return found


def _read(path: Path, fingerprint: Fingerprint, num: int) -> list[frozenset[int]] | None:
    try:
        content = read_json(path, deepest=None)
        if content["fingerprint"] != fingerprint.state or len(content["presence"]) != num:
            return None
        return [frozenset(map(int, classes)) for classes in content["presence"]]
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None  # no cache, or a damaged one: work it out again


def _write(path: Path, fingerprint: Fingerprint, presence: list[frozenset[int]]) -> None:
    content = {"fingerprint": fingerprint.state, "presence": [sorted(classes) for classes in presence]}
    # A cache that cannot be written costs time, not the run. Several processes may write: the last one wins whole.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        write_whole(path, json.dumps(content, separators=(",", ":")).encode())
