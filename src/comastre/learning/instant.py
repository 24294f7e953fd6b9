"""Seconds first: before a lesson trains, a model that learns by one look at each image, with its verdict."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comastre.bundle import store
from comastre.config import methods
from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.evaluation.results import StepResult
from comastre.learning import directory, final_words
from comastre.learning.comparing import SHOWN_FOLDER
from comastre.learning.learned import Outcome, outcome_of
from comastre.learning.lesson import Lesson
from comastre.learning.measuring import measure
from comastre.learning.plan import Plan
from comastre.learning.schedule import choose
from comastre.learning.starting_model import StartingModel, run_settings
from comastre.text import table
from comastre.training.run import run
from comastre.training.start import Start
from comastre.training.stopping import Interrupted

if TYPE_CHECKING:
    from comastre.learning.outcome import Ending

MOST_OF_TIME = 0.3
"""Share of a time limit beyond which there is no time for a look before the training."""


@dataclass(frozen=True)
class Instant:
    """A lesson that is one look at each image."""

    config: RunConfig
    starting: StartingModel

    def give(self, ending: Ending, before: StepResult | None, old_before: Mapping[str, float | None]) -> None:
        """Look, score, keep model and outcome beside the training, and say what came of it."""
        lesson, folder = ending.plan.lesson, directory.instant_folder(ending.work)
        shutil.rmtree(folder, ignore_errors=True)  # of another command that was killed
        assert self.starting.bundle is not None
        known = before or lesson.unscored(lesson.scenario(self.config.continual.setting), 0)
        try:
            with tempfile.TemporaryDirectory() as aside:
                bundle = self.starting.folder or store.save(self.starting.bundle, Path(aside) / "model")
                start = Start(bundle, directory.first_results(self.config, lesson, known))
                results = run(self.config, folder, parts=replace(lesson.parts(), title="instant"), start=start)
        except Interrupted as stop:
            raise Interrupted(
                "stopped before training began: the same command starts it again", stop.signal_number
            ) from None
        model = store.load(directory.new_bundle(folder, lesson)).model
        after = results.steps[lesson.step]
        outcome = measure(
            ending.work, ending.plan, self.config, model, before, after, old_before, pictures=folder / SHOWN_FOLDER
        )
        outcome.write(folder)
        ending.say("")
        ending.say(_words(ending, outcome, directory.new_bundle(folder, lesson)))
        ending.say("")


def instant_of(starting: StartingModel, plan: Plan, settings: Mapping[str, Any]) -> Instant | None:
    """The instant lesson before one that trains; None where there is none for this model or this data."""
    lesson = plan.lesson
    other = starting.taught_at_once()
    if other is None or lesson.practises or "method" in settings:
        return None
    if lesson.continued is not None and lesson.continued.begins:
        return None  # it goes on with weights that were trained already
    return Instant(choose(run_settings(other), plan.amounts, lesson.source.settings(), settings), other)


def given(work: Path, lesson: Lesson) -> tuple[Outcome, Path] | None:
    """What the instant lesson measured, and where its model is; None where there was none."""
    folder = directory.instant_folder(work)
    outcome = outcome_of(folder)
    return None if outcome is None else (outcome, directory.new_bundle(folder, lesson))


def take_pictures(work: Path) -> None:
    """Let the page of the lesson show what the instant model sees otherwise."""
    theirs, ours = directory.instant_folder(work) / SHOWN_FOLDER, work / SHOWN_FOLDER
    if theirs.is_dir():
        shutil.rmtree(ours, ignore_errors=True)
        shutil.copytree(theirs, ours)


def at_once(starting: StartingModel, what: str) -> StartingModel:
    """The model as it is taught by one look; `what` asks for it."""
    own = starting.description.method
    if own in {spec.taught_at_once_by for spec in methods.methods().values()}:
        return starting
    other = starting.taught_at_once()
    if other is None:
        kind = "a new model" if starting.bundle is None else f"a model of the method {own}"
        raise UserError(f"{what} is for models of the method comastre and not for {kind}: leave it away")
    return other


def _words(ending: Ending, outcome: Outcome, place: Path) -> str:
    decision, verdicts = ending.decision(outcome), ending.verdicts(outcome)
    lines = [("instant", f"one look at each of {ending.plan.amounts.images} images; nothing was trained")]
    lines += final_words.verdict_lines(verdicts, ending.changes(outcome), decision, advise=False)
    standing = ending.standing(outcome)
    if standing.settles:
        text = (
            f"what it does to {standing.untold} cannot be told by these images: this model will be handed over, and "
            "the trained one kept if the gate lets it pass; --unlabelled FOLDER or --old-val DATA, of images that show "
            "old classes, lets it count, --instant leaves it out"
        )
        lines.append(("the training", text))
    lines.append(("to use meanwhile", str(place)))
    return table(lines, indent=0)
