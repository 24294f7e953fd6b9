"""The verb `comastre undo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from comastre.text import say


def undo(
    model: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="MODEL")]],
    /,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    parent: Annotated[Path | None, tyro.conf.arg(metavar="MODEL")] = None,
) -> int:
    """Go back to the model before the last lesson, bit for bit.

    It takes the place of MODEL, which is kept aside as MODEL.undone-1; with --out, MODEL stays as it is.

    Args:
        model: Folder of a model that `comastre learn` wrote.
        out: Folder for the model before, which must not exist yet.
        parent: The model before, where it is neither kept in the bundle nor in a folder beside it.
    """
    from comastre.bundle.history import digest
    from comastre.bundle.undo import undo

    place, newer = undo(model, out, parent)
    say(f"the model before the last lesson is in {place} (sha256 {digest(place)})")
    if newer is not None:
        say(f"the newer one is kept in {newer}")
    return 0
