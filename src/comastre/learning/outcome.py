"""After a lesson: what it scored, the new bundle where the user wants it, and what is said about both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from comastre.bundle import store
from comastre.class_table import ClassTable
from comastre.config.run import RunConfig
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.evaluation.image_progress import ImageProgress
from comastre.evaluation.results import StepResult
from comastre.learning import directory, messages
from comastre.learning.images import scoring_part
from comastre.learning.lesson import keep_scores, mean_score
from comastre.learning.plan import OldData, Plan
from comastre.prediction.model import Model
from comastre.text import shortened
from comastre.training.checkpoint import write_atomically
from comastre.training.launch import build_fabric
from comastre.training.parts import LearnedStep, Prepared, evaluate_step

Say = Callable[[str], None]


@dataclass(frozen=True)
class Learned:
    """What a lesson brought; scores are IoU in percent by class name, None where a class can't be scored."""

    path: Path
    """The new bundle."""
    classes: ClassTable
    new_classes: tuple[str, ...]
    scores: Mapping[str, float | None]
    """Of the classes that the data labels, on its held-out part or on `val`."""
    old_before: Mapping[str, float | None]
    """On `old_val`: the old model; empty without `old_val`."""
    old_after: Mapping[str, float | None]
    """On `old_val`: the new model."""

    @property
    def model(self) -> Model:
        """The new model, loaded from its bundle."""
        return Model(store.load(self.path))

    def __repr__(self) -> str:
        lines = [f"Learned {shortened(self.new_classes)}: {len(self.classes.names)} classes in {self.path}"]
        scored = [f"{name} {score:.1f}" for name, score in self.scores.items() if score is not None]
        lines += [f"IoU in %: {shortened(scored)}"] if scored else []
        old = tuple(self.old_before)
        lines += [messages.kept(old, self.old_before, self.old_after)] if old else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Outcome:
    """What a lesson scored, kept beside its settings: a kill after the model was written must not cost it."""

    scores: Mapping[str, float | None]
    """Of the new model, on the held-out part or on the data for scoring."""
    before: Mapping[str, float | None]
    """Of the old model, there."""
    old_before: Mapping[str, float | None]
    """On data of old classes: the old model."""
    old_after: Mapping[str, float | None]
    """The same: the new model."""
    delivered: bool = False
    """Whether the new model was written where the user wanted it."""

    def write(self, work: Path) -> None:
        content = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
        write_atomically(work / directory.OUTCOME, json_bytes(content))


def outcome_of(work: Path) -> Outcome | None:
    """What a finished lesson scored; None where it is not finished, or its file is no longer whole."""
    try:
        content = read_json(work / directory.OUTCOME)
        return TypeAdapter(Outcome).validate_python(content)
    except (OSError, ValueError):
        return None


def learned_before(out: Path, work: Path, plan: Plan, request: Mapping[str, Any]) -> Outcome | None:
    """What this very lesson scored, if its model is written already; a kill may have come before it was told."""
    outcome, earlier = outcome_of(work), directory.begun(work)
    if directory.is_there(out):
        same = earlier is not None and not directory.changes(request, earlier[1])
        if outcome is None or not same or store.load(out).classes.names != plan.lesson.roles.names:
            raise directory.exists_already(out)
        return outcome
    if outcome is not None and outcome.delivered:
        raise UserError(
            f"this was learned already, but the model is no longer in {out}: move it back there, or train it again "
            "with --fresh"
        )
    return None


def finish(
    out: Path,
    work: Path,
    config: RunConfig,
    plan: Plan,
    before: StepResult | None,
    after: StepResult,
    say: Say,
) -> Learned:
    """Score, write the new bundle whole, and say what came of it."""
    lesson, roles = plan.lesson, plan.lesson.roles
    grown = store.load(directory.new_bundle(work, lesson))
    scores = {name: after.per_class.get(name) for name in roles.names if name in lesson.scored}
    outcome = Outcome(scores, before.per_class if before is not None else {}, {}, {})
    classes = grown.classes
    if plan.old_data is not None:
        say(f"scoring the old and the new model on {plan.old_data.title}")
        old_before = _score_old(store.load(directory.old_bundle(work)).model, 0, config, plan, plan.old_data)
        old_after = _score_old(grown.model, 1, config, plan, plan.old_data)
        classes = _with_forgetting(classes, roles.old, old_before, old_after)
        outcome = replace(outcome, old_before=old_before, old_after=old_after)
    outcome.write(work)
    store.save(replace(grown, classes=classes), out)
    return told(out, work, plan, outcome, say)


def told(out: Path, work: Path, plan: Plan, outcome: Outcome, say: Say) -> Learned:
    """Drop what was for going on, and say what came of it."""
    replace(outcome, delivered=True).write(work)
    directory.tidy(work)
    roles, scores = plan.lesson.roles, outcome.scores
    classes = store.load(out).classes
    say("")
    if any(value is not None for value in scores.values()):
        say(f"IoU in % on {_scoring_title(plan)}:")
        say(messages.outcome(tuple(scores), outcome.before, scores))
    else:
        say("nothing was scored: no image was left for it; give --val DATA")
    if plan.old_data is not None:
        say(f"IoU in % on {plan.old_data.title}, which measures forgetting:")
        say(messages.forgetting(roles.old, roles.new, outcome.old_before, outcome.old_after))
        say(messages.kept(roles.old, outcome.old_before, outcome.old_after))
    elif roles.old:
        say("what was forgotten of the old classes is not measured: give --old-val DATA, images labelled for them")
    say(f"the new model is in {out}, {len(classes.names)} classes; try `comastre predict {out} IMAGES --out DIR`")
    say(f"settings and logs of the training are in {work}, which can be deleted")
    return Learned(out, classes, roles.new, scores, outcome.old_before, outcome.old_after)


def old_images(old_data: OldData) -> Any:
    return scoring_part(old_data.source)


def _score_old(model: Any, step: int, config: RunConfig, plan: Plan, old_data: OldData) -> Mapping[str, float | None]:
    """IoU of the classes that the data of old classes shows."""
    device = build_fabric(config.training).device
    dataset = plan.lesson.relabelled(old_images(old_data), old_data.labels)
    scenario = plan.lesson.scenario(config.continual.setting)
    # Images may differ in size here even where those of the lesson do not.
    evaluation = config.evaluation.model_copy(update={"batch_size": 1})
    config = config.model_copy(update={"evaluation": evaluation})
    prepared = Prepared(dataset, dataset, scenario)
    with ImageProgress("scoring", len(dataset)) as progress:
        task = scenario.tasks[step]
        result = evaluate_step(LearnedStep(model.to(device), task, prepared, config, device, scored=progress.advance))
    model.cpu()
    return keep_scores(result, old_data.scored, plan.lesson.roles).per_class


def _with_forgetting(
    classes: ClassTable, old: Sequence[str], before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> ClassTable:
    """The class table whose last step also says what was forgotten."""
    *earlier, last = classes.lineage
    means = {"old classes before": mean_score(before, old), "old classes after": mean_score(after, old)}
    known = {name: value if math.isfinite(value) else None for name, value in means.items()}
    last = last.model_copy(update={"scores": {**last.scores, **known}})
    return classes.model_copy(update={"lineage": (*earlier, last)})


def _scoring_title(plan: Plan) -> str:
    lesson = plan.lesson
    if lesson.scoring is None:
        return f"{len(lesson.held_out)} held-out {'image' if len(lesson.held_out) == 1 else 'images'}"
    place = lesson.scoring.file or lesson.scoring.root
    return f"the images for scoring in {place}" if place is not None else str(lesson.scoring)
