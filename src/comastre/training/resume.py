"""Where a run is when it is started: at its beginning, after steps that were learned elsewhere, or where it stopped."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from comastre.config.run import RunConfig
from comastre.config.run_files import CHECKPOINTS, CONFIG
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.methods.protocol import Method
from comastre.training.checkpoint import Checkpoint, Position, load_latest, restore_random_state
from comastre.training.directory import fingerprint
from comastre.training.launch import Team
from comastre.training.parts import Parts, Prepared
from comastre.training.progress import RunProgress
from comastre.training.session import Session
from comastre.training.start import Start


def load_checkpoint(out: Path, config: RunConfig, team: Team, progress: RunProgress) -> Checkpoint | None:
    """The newest checkpoint of this very run; None where there is none yet."""
    # The first process alone puts damaged files aside, then all read the same one.
    saved = load_latest(out / CHECKPOINTS, progress.say) if team.rank == 0 else None
    team.wait()
    if team.rank > 0:
        saved = load_latest(out / CHECKPOINTS, progress.say)
    if saved is not None and saved.config != fingerprint(config):
        raise UserError(f"the checkpoints in {out} belong to other settings than its {CONFIG}: start over with --fresh")
    return saved


def where_it_is(
    method: Method,
    prepared: Prepared,
    config: RunConfig,
    saved: Checkpoint | None,
    start: Start | None,
    parts: Parts,
    device: torch.device,
) -> tuple[Position, Any, Results]:
    """Position, model and results of a run: as the checkpoint has them, else as it starts, else at the beginning."""
    if saved is None and start is not None:
        model = parts.load(start.bundle).to(device)
        return Position(len(start.results.steps)), model, start.results
    results = _no_results(prepared, config)
    if saved is None:
        return Position(), None, results
    if saved.results:
        results = Results.from_json(saved.results, source="the checkpoint's results")
    model = method.build(saved.tasks).to(device)
    model.load_state_dict(dict(saved.model))
    position = saved.position
    task = prepared.scenario.tasks[position.step] if position.iteration > 0 else None
    method.restore(task, model, {name: tensor.to(device) for name, tensor in saved.method.items()})
    return position, model, results


def _no_results(prepared: Prepared, config: RunConfig) -> Results:
    training_set, scenario = prepared.training_set, prepared.scenario
    return Results(
        method=config.method,
        dataset=training_set.name,
        setting=scenario.setting,
        protocol=scenario.protocol,
        seed=config.seed,
        background=training_set.has_background,
        class_order=tuple(training_set.class_names[class_id - 1] for class_id in scenario.class_order),
        tradition=scenario.tradition,
        convention=config.evaluation.convention,
    )


def seed_everything(*numbers: int) -> None:
    """Start all generators from a mix of the numbers: a step's randomness does not depend on the steps before it."""
    mixed = int(np.random.SeedSequence([number & (2**64 - 1) for number in numbers]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def restore_randomness(session: Session, saved: Checkpoint) -> None:
    """Let all generators go on where the checkpoint found them."""
    if session.team.rank < len(saved.random_states):
        restore_random_state(saved.random_states[session.team.rank])
    else:  # more processes than before
        seed_everything(session.config.seed, saved.position.step, saved.position.iteration, session.team.rank)
