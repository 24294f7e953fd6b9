"""Before a lesson trains: how fast this machine is, what the old model knows, and how long to train."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from comastre.bundle import store
from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.evaluation.image_progress import ImageProgress
from comastre.evaluation.results import StepResult
from comastre.learning import directory, messages
from comastre.learning.comparing import Comparison, Sight, seen
from comastre.learning.instant import MOST_OF_TIME, Instant
from comastre.learning.lesson import Lesson
from comastre.learning.outcome import Ending
from comastre.learning.plan import Plan
from comastre.learning.schedule import (
    learns_at_once,
    planned_iterations,
    total_iterations,
    training_seconds,
    with_iterations,
    with_pace,
)
from comastre.learning.scoring import score_old
from comastre.learning.starting_model import StartingModel
from comastre.training.clock import Times
from comastre.training.launch import build_fabric
from comastre.training.pace import seconds_per_iteration
from comastre.training.parts import LearnedStep, Prepared
from comastre.training.start import Start
from comastre.training.stopping import Interrupted

LOOKING = 0.1
"""Share of a time limit, at most, for what the old model sees without labels; the new one takes as long."""


def begin(
    ending: Ending,
    config: RunConfig,
    starting: StartingModel,
    request: Mapping[str, Any],
    minutes: float | None,
    sights: Sequence[Sight],
    began: float,
    first: Instant | None,
) -> None:
    """Measure, give the instant model, decide, and write down what is decided.

    `began` is when the minutes began (`time.monotonic`), `first` the lesson of one look, if there is one.
    """
    work, plan, say = ending.work, ending.plan, ending.say
    lesson, amounts = plan.lesson, plan.amounts
    device = build_fabric(config.training).device
    say(f"in            {work}: interrupted, the same command goes on there")
    looked = time.monotonic()
    until = None if minutes is None else looked + LOOKING * 60 * minutes
    directory.claim(work, {"request": request})
    before, old_before = look_at_old(ending, config, starting, sights, device, until)
    looking = time.monotonic() - looked
    if first is not None:
        needed = looking * (1 + amounts.images / max(1, len(seen(work))))
        if minutes is None or needed <= MOST_OF_TIME * 60 * minutes:
            first.give(ending, before, old_before)
        else:
            say("instant       left out: a look at every image would take too much of these minutes")
    seconds = 0.0 if learns_at_once(config, amounts) else time_iterations(config, starting, lesson)
    wanted = total_iterations(config, amounts)
    scoring = _scoring_seconds(config, starting, plan, looking, seconds)
    times, passed = Times(scoring=scoring), time.monotonic() - began
    if minutes is not None:
        available = training_seconds(minutes, passed, scoring)
        config = with_iterations(config, amounts, min(wanted, planned_iterations(available, seconds)))
        times = Times(available, scoring)
    if wanted:
        config = with_pace(config, seconds)
        say(f"training      {messages.schedule(config, amounts, seconds, wanted, str(device), times, passed)}")
    else:
        say(f"training      none: one look at each of {amounts.images} images on {device}, as {config.method} teaches")
    decided = {
        "request": request,
        "scored on": ending.scored_on,
        "seconds": seconds,
        "times": asdict(times),
        "old_before": old_before,
    }
    directory.set_up(work, config, starting, lesson, before, decided)


def times_of(decided: Mapping[str, Any]) -> Times:
    """The time limit that a lesson's plan holds; none in plans of before."""
    try:
        return TypeAdapter(Times).validate_python(decided.get("times") or {})
    except ValidationError:
        raise UserError("the plan of this lesson is damaged (times): start over with --fresh") from None


def time_iterations(config: RunConfig, starting: StartingModel, lesson: Lesson) -> float:
    """Seconds per iteration of this lesson on this machine; nothing is kept of it."""
    with tempfile.TemporaryDirectory() as folder:
        start = None
        if starting.bundle is not None:
            scenario = lesson.scenario(config.continual.setting)
            known = lesson.unscored(scenario, 0)
            bundle = starting.folder or store.save(starting.bundle, Path(folder) / "model")
            start = Start(bundle, directory.first_results(config, lesson, known))
        try:
            return seconds_per_iteration(config, lesson.parts(), start)
        except Interrupted as stop:
            raise Interrupted(
                "stopped before training began: the same command starts it again", stop.signal_number
            ) from None


def look_at_old(
    ending: Ending,
    config: RunConfig,
    starting: StartingModel,
    sights: Sequence[Sight],
    device: torch.device,
    until: float | None,
) -> tuple[StepResult | None, Mapping[str, float | None]]:
    """What the old model scores where the lesson is scored, and on data of old classes; what it sees is kept."""
    if starting.bundle is None:
        return None, {}
    plan = ending.plan
    lesson, old = plan.lesson, starting.bundle.model.to(device).eval()
    scenario = lesson.scenario(config.continual.setting)
    before = lesson.unscored(scenario, 0)
    if lesson.scored.intersection(lesson.roles.old):
        prepared = Prepared(*lesson.data(config), scenario)
        with ImageProgress("scoring the old model", len(prepared.validation_set)) as progress:
            learned = LearnedStep(old, scenario.tasks[0], prepared, config, device, scored=progress.advance)
            before = lesson.evaluate(learned)
    old_before = score_old(old, 0, config, plan, plan.old_data, device) if plan.old_data is not None else {}
    for sentence in Comparison(ending.work, lesson, config, device).look_before(old, sights, until):
        ending.say(f"warning: left out of --unlabelled: {sentence}")
    old.cpu()
    return before, old_before


def _scoring_seconds(config: RunConfig, starting: StartingModel, plan: Plan, looking: float, seconds: float) -> float:
    """How long scoring will take: as long as the old model took, and what it did not score by the pace of training."""
    lesson = plan.lesson
    unmeasured = 0 if lesson.scored.intersection(lesson.roles.old) else len(lesson.data(config)[1])
    if starting.bundle is None:
        looking = 0.0
    return looking + unmeasured * seconds / config.training.batch_size
