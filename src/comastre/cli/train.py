"""The verb `comastre train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

Source = Annotated[str, tyro.conf.arg(metavar="PRESET_OR_YAML")]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]
BaseRun = Annotated[Path | None, tyro.conf.arg(metavar="RUN")]


def train(
    source: tyro.conf.Positional[Source],
    /,
    out: Out,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    base: BaseRun = None,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Run all steps of a stream; started again with the same --out it resumes where it stopped.

    Any field of the configuration can be given as --section.field value.

    Args:
        source: A preset (see `comastre presets`) or a YAML file.
        out: Run directory: configuration, checkpoints, results and a model per step.
        fresh: Start over instead of resuming; the old run is kept aside.
        base: Another run whose first step this one takes as its own, so that methods start from the same model.
        overrides: Fields from the command line, already split off.
    """
    from comastre.config.settings import load_config

    # Validated before torch is imported: a typing mistake is answered at once.
    config = load_config(source, overrides)
    from comastre.training.run import run

    run(config, out, fresh=fresh, base=base)
    from comastre.report.write import report_after_training

    report_after_training(out)
    return 0
