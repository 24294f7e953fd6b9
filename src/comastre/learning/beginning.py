"""Before a lesson trains: how fast this machine is, what the old model knows, and how long to train."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    GATHERING,
    WHOLE_IMAGE,
    learns_at_once,
    planned_iterations,
    seconds_after_look,
    total_iterations,
    training_seconds,
    with_iterations,
    with_pace,
)
from comastre.learning.scoring import images_of_old_data, score_old
from comastre.learning.starting_model import StartingModel
from comastre.methods.protocol import Method
from comastre.stream.whole_images import FEWEST, some_of_each
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
    after = _scoring_seconds(config, starting, plan, looking, seconds)
    scoring = after + _gathering_seconds(work, config, starting, plan, looking, seconds, minutes)
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
        "times": {"training": times.training, "scoring": times.scoring},
        "after_look": seconds_after_look(passed, after),
        "old_before": old_before,
    }
    directory.set_up(work, config, starting, lesson, before, decided)


def times_of(decided: Mapping[str, Any], until: float | None = None) -> Times:
    """The time limit that a lesson's plan holds; none in plans of before. `until` is when its minutes are over."""
    try:
        times = TypeAdapter(Times).validate_python(decided.get("times") or {})
        after_look = TypeAdapter(float).validate_python(decided.get("after_look") or 0.0)
        return times if until is None else replace(times, look_until=until - after_look)
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


def _gathering_seconds(
    work: Path,
    config: RunConfig,
    starting: StartingModel,
    plan: Plan,
    looking: float,
    seconds: float,
    minutes: float | None,
) -> float:
    """How long the method will look at images beside its iterations and the scoring."""
    if not seconds:
        return 0.0  # the look is all that there is, and no time limit holds for it
    lesson = plan.lesson
    method = lesson.method_of(config)
    on_crops = WHOLE_IMAGE * seconds / config.training.batch_size
    # Methods that look at every image before or after they train, such as for thresholds or prototypes.
    passes = sum(getattr(type(method), verb) is not getattr(Method, verb) for verb in ("before_training", "look_back"))
    rest = passes * len(lesson.images) * on_crops
    if not method.gathers:
        return rest
    # As fast as the old model has just looked at images; a new one, by the pace of training.
    seen_before = _images_of_old(work, config, plan) if starting.bundle is not None else 0
    each = looking / seen_before if seen_before else on_crops
    task, presence = lesson.scenario(config.continual.setting).tasks[lesson.step], lesson.data(config)[0].presence()
    if method.images_per_class is None:
        return rest + each * len(task.images)
    whole = each * len(some_of_each(task, presence, method.images_per_class).images)
    if minutes is None:
        return rest + whole
    few = each * len(some_of_each(task, presence, min(FEWEST, method.images_per_class)).images)
    return rest + max(few, min(whole, GATHERING * 60 * minutes))


def _images_of_old(work: Path, config: RunConfig, plan: Plan) -> int:
    """At how many images the old model has looked, with labels and without."""
    lesson = plan.lesson
    scored = len(lesson.data(config)[1]) if lesson.scored.intersection(lesson.roles.old) else 0
    labelled = len(images_of_old_data(plan, plan.old_data)) if plan.old_data is not None else 0
    return scored + labelled + len(seen(work))
