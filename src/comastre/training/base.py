"""Methods compared from the same base model: a run that takes another run's first step as its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from comastre.config import RunConfig
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.settings import differences, load_config
from comastre.training.checkpoint import Checkpoint, Position, save
from comastre.training.directory import CHANGEABLE, CHECKPOINTS, CONFIG, RESULTS, fingerprint

# What both runs must share for the first step to mean the same in both.
_SHARED = ("seed", "model.", "data.", "continual.", "evaluation.")


def adopt_first_step(base: Path, out: Path, config: RunConfig) -> None:
    """Make the new run `out` one that has just finished its first step, with the model and scores of `base`."""
    if not (base / CONFIG).exists() or not (base / RESULTS).exists():
        raise UserError(f"{base} is not a run with a finished first step: give the folder of one")
    changed = [line for line in differences(load_config(base / CONFIG), config) if line.startswith(_SHARED)]
    changed = [line for line in changed if line.split(":")[0] not in CHANGEABLE]
    if changed:
        raise UserError(f"{base} cannot be the base of {out}, its settings differ: {'; '.join(changed)}")
    results = Results.load(base / RESULTS)
    first = replace(results, method=config.method, steps=results.steps[:1])
    bundle = out / "steps" / "00"
    shutil.copytree(base / "steps" / "00", bundle, dirs_exist_ok=True)
    first.write(out / RESULTS)
    tensors = load_file(bundle / "model.safetensors")
    # Last, because from this moment on the run counts as begun.
    save(out / CHECKPOINTS, Checkpoint(Position(1), tensors, results=first.as_json(), config=fingerprint(config)))
