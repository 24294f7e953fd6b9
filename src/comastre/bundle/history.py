"""Where a model comes from: its sha256, and the model before its last lesson, found or restored bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from comastre.bundle import store
from comastre.bundle.weights import WEIGHTS
from comastre.errors import UserError

SIGNED = (store.CLASSES, store.CONFIG, WEIGHTS)
"""What makes a model, in the order of their names; the card is for people, and may be edited."""


def digest(folder: Path) -> str:
    """The sha256 of a bundle: that of what `sha256sum classes.json config.json model.safetensors` prints there."""
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in SIGNED]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def parents_digest(folder: Path) -> str:
    """The sha256 of the model before the last lesson."""
    lineage = store.load(folder).classes.lineage
    if not lineage or lineage[-1].parent is None:
        raise UserError(
            f"{folder} does not say which model it was before: it was trained from nothing, or by an earlier version"
        )
    return lineage[-1].parent


def parent_of(folder: Path, named: Path | None = None, likely: Iterable[Path] = ()) -> Path:
    """The folder of the model before the last lesson: `named`, one of the `likely`, or one beside `folder`.

    Whatever it is called, its sha256 says that it is the one.
    """
    wanted = parents_digest(folder)
    if named is not None:
        if not _is_bundle(named) or digest(named) != wanted:
            raise UserError(f"--parent {named} is not the model before the last lesson of {folder}: give another one")
        return named
    for candidate in (*likely, *_beside(folder)):
        if _is_bundle(candidate) and digest(candidate) == wanted:
            return candidate
    raise UserError(
        f"the model before the last lesson of {folder} (sha256 {wanted[:16]}...) is not beside it: give --parent FOLDER"
    )


def _beside(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(each for each in folder.absolute().parent.iterdir() if each.is_dir())
    except OSError:
        return


def _is_bundle(folder: Path) -> bool:
    return all((folder / name).is_file() for name in SIGNED)


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): check the model") from None
