"""A finished lesson whose model is to be scored on other images than before: it is measured again, not trained."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comastre.bundle import store
from comastre.config.run import RunConfig
from comastre.evaluation.image_progress import ImageProgress
from comastre.learning import directory
from comastre.learning.beginning import LOOKING, look_at_old
from comastre.learning.choosing import choose_of_two
from comastre.learning.comparing import Sight
from comastre.learning.learned import Outcome
from comastre.learning.measuring import measure
from comastre.learning.outcome import Ending, guaranteed, write_marked
from comastre.learning.starting_model import StartingModel
from comastre.training.launch import build_fabric
from comastre.training.parts import LearnedStep, Prepared

_EARLIER = " (by what was measured first)"


def measured_again(
    ending: Ending,
    config: RunConfig | None,
    known: Outcome,
    starting: StartingModel,
    sights: Sequence[Sight],
    minutes: float | None,
    began: float,
) -> Outcome:
    """What the model of a finished lesson scores on the images that are given now, and what it forgot by them.

    `config` is that of the model, where it is another than the training's; `known` is what was measured before.
    """
    work, plan, lesson = ending.work, ending.plan, ending.plan.lesson
    config = config or directory.decided(work)[0]
    device = build_fabric(config.training).device
    differ = directory.differing(ending.scored_on, known.scored_on)
    ending.say(f"measuring     again, because {' and '.join(differ)} changed since; nothing is trained")
    until = None if minutes is None else time.monotonic() + LOOKING * 60 * minutes
    before, old_before = look_at_old(ending, config, starting, sights, device, until)
    until = None if minutes is None else began + 60 * minutes

    def measured(model: Any, config: RunConfig, title: str, pictures: Path | None = None) -> Outcome:
        scenario = lesson.scenario(config.continual.setting)
        prepared = Prepared(*lesson.data(config), scenario)
        with ImageProgress(f"scoring the {title} model", len(prepared.validation_set)) as progress:
            after = lesson.evaluate(
                LearnedStep(model, scenario.tasks[lesson.step], prepared, config, device, scored=progress.advance)
            )
        return measure(work, plan, config, model, before, after, old_before, until, pictures)

    place = ending.out if directory.is_there(ending.out) else directory.refused_folder(ending.out)
    model = store.load(place).model.to(device)
    outcome = measured(model, config, "new")
    if ending.guarantee and starting.bundle is not None:
        outcome = guaranteed(ending, config, outcome, starting.bundle.model, model)
    aside = directory.trained_folder(work)
    if directory.is_there(aside):
        bundle = store.load(aside)
        with tempfile.TemporaryDirectory() as pictures:
            trained = measured(bundle.model.to(device), directory.decided(work)[0], "trained", Path(pictures))
        write_marked(ending, trained, bundle, aside, overwrite=True)
        choice = choose_of_two(ending.standing(outcome), ending.standing(trained))
        # Models may have learned on from the one that was handed over, so that it stays where it is.
        why = choice.why if choice.instant else f"it was first; the one in {aside} is better by now: {choice.why}"
    else:
        # The other of two models is gone: which one was handed over stays what it was.
        why = known.why + _EARLIER if known.why and not known.why.endswith(_EARLIER) else known.why
    outcome = replace(outcome, chosen=known.chosen, why=why, delivered=known.delivered, scored_on=ending.scored_on)
    outcome.write(work)
    return outcome
