"""`comastre undo`: the model before the last lesson, bit for bit, in the place of the newer one or elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from comastre.bundle import difference, history
from comastre.bundle.hub import locate
from comastre.errors import UserError
from comastre.files import copy_files, flush
from comastre.paths import user_path


def undo(model: str | Path, out: Path | None = None, parent: str | Path | None = None) -> tuple[Path, Path | None]:
    """Write the model before the last lesson of `model` to `out`, or into its place; gives it and the newer one.

    In its place, the newer model is kept aside as `<model>.undone-1`. The older one comes from what the bundle keeps of
    it, else from the folder of its parent: `parent`, or one beside it with its sha256.
    """
    folder = locate(model)
    wanted = history.parents_digest(folder)
    target = folder if out is None else user_path(out, "--out")
    if out is not None and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"--out {target} exists already and is never overwritten: name a new folder")
    made = target.with_name(f".{target.name}.undo")
    shutil.rmtree(made, ignore_errors=True)
    try:
        made.mkdir(parents=True)
        if parent is None and (folder / difference.PREVIOUS).is_file():
            difference.restore(folder, made)
        else:
            named = None if parent is None else user_path(parent, "--parent")
            source = history.parent_of(folder, named)
            copy_files(source, made)
        if history.digest(made) != wanted:
            raise UserError(f"what was found is not the model before the last lesson of {folder}: give --parent FOLDER")
        newer = None
        if out is None:
            newer = _free(folder)
            folder.rename(newer)
        elif target.exists():
            target.rmdir()
        made.rename(target)
        flush(target.parent)
    except OSError as error:
        raise UserError(f"the model before cannot be written to {target}: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target, newer


def _free(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.undone-{number}")).exists():
        number += 1
    return aside
