"""The verb `comastre convert`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

ModelName = Annotated[str, tyro.conf.arg(metavar="MODEL")]
Images = Annotated[list[str], tyro.conf.arg(metavar="IMAGES")]


def convert(
    model: tyro.conf.Positional[ModelName],
    images: tyro.conf.Positional[Images],
    /,
    out: Annotated[Path, tyro.conf.arg(metavar="NEW_MODEL")],
    minutes: Annotated[float | None, tyro.conf.arg(metavar="MINUTES")] = None,
    iterations: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Turn a Mask2Former, such as an imported one, into CoMasTRe: with its masks, and taught its classes by itself.

    The images need no labels, and any will do that look like those to come. At the end it says how far both models
    agree on held-out images. Interrupted, the same command goes on. Any field of the configuration can be given as
    --section.field value (`comastre train --help` lists them).

    Args:
        model: Folder of a bundle of Mask2Former's kind, or its id on the hub.
        images: Image files, folders (with their sub-folders), or patterns in quotes such as "photos/**/*.jpg".
        out: Folder for the new model, which must not exist yet; the old model is never touched.
        minutes: Train at most so long.
        iterations: Train exactly so long.
        fresh: Start over instead of going on; what was there is kept aside.
        overrides: Fields from the command line, already split off.
    """
    from comastre.learning.convert import convert as turn

    turn(model, images, out=out, minutes=minutes, iterations=iterations, fresh=fresh, settings=overrides)
    return 0
