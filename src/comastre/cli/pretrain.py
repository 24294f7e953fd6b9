"""The verb `comastre pretrain`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from comastre.errors import UserError
from comastre.text import say

Source = Annotated[str, tyro.conf.arg(metavar="PRESET_OR_YAML")]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def pretrain(
    source: tyro.conf.Positional[Source],
    /,
    out: Out,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Train stage 1 alone, without classes, for `comastre train ... --init RUN` to start from.

    Any field of the configuration can be given as --section.field value. Started again with the same --out it resumes
    where it stopped.

    Args:
        source: coco-objectness (COCO without the VOC classes, paper Table 4), coco-objectness-cpu (the same for the
            small VOC presets), shapes-objectness (for those of Shapes, no download), or a YAML file with method:
            objectness.
        out: Run directory: configuration, checkpoints, results and the model.
        fresh: Start over instead of resuming; the old run is kept aside.
        overrides: Fields from the command line, already split off.
    """
    from comastre.config.settings import load_config

    config = load_config(source, overrides)
    if "labels" in config.spec.gives:
        raise UserError(
            f"{source} has the method {config.method}, which trains both stages: use `comastre train`, or start from "
            "coco-objectness"
        )
    from comastre.training.run import run

    results = run(config, out, fresh=fresh)
    found = results.steps[0].summary(results.convention)
    say(f"{found}; start from it with: comastre train {_starts(source)} --init {out} ...")
    return 0


def _starts(source: str) -> str:
    """A preset whose model is the one that was trained."""
    return {"shapes-objectness": "shapes-6-1", "coco-objectness-cpu": "voc-15-1-cpu"}.get(source, "voc-15-1")
