"""After a lesson: what it scored, the new bundle where the user wants it or aside, and what is said about both."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comastre.bundle import store
from comastre.bundle.difference import keep_difference
from comastre.class_table import ClassTable
from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.evaluation.results import StepResult
from comastre.learning import directory, final_words, instant
from comastre.learning.choosing import Standing, choose_of_two
from comastre.learning.gate import ClassChange, Decision, decide
from comastre.learning.learned import Learned, Outcome, outcome_of
from comastre.learning.lesson import mean_score
from comastre.learning.measuring import largest_change, measure
from comastre.learning.plan import Plan
from comastre.learning.scoring import score_old
from comastre.learning.verdict import ClassVerdict, Place, judge, nothing_learned
from comastre.text import Say, table
from comastre.training.launch import build_fabric


@dataclass(frozen=True)
class Ending:
    """Where a lesson's model goes, and what is asked of it."""

    out: Path
    work: Path
    plan: Plan
    keep: float | None
    """Percent of the old classes that must be kept; None for the usual."""
    data: str
    """What the user calls the data."""
    origin: Path | None
    """Where the model is that the lesson began with; None for one that is in no folder."""
    say: Say
    guarantee: bool = False
    """Whether old scores may not move at all."""
    scored_on: Mapping[str, str | None] = field(default_factory=dict)
    """Which images the model is scored on, by the option that names them."""
    trained: bool = True
    """Whether anything is trained; False for one look alone."""

    def place(self, refused: bool) -> Path:
        return directory.refused_folder(self.out) if refused else self.out

    def changes(self, outcome: Outcome) -> tuple[ClassChange, ...]:
        """Every class before and after."""
        roles, plan = self.plan.lesson.roles, self.plan
        agreement = {each.name: each for each in outcome.agreement}
        changes = []
        for name in roles.names:
            change = ClassChange(name, name in roles.new, agreement=agreement.get(name))
            if plan.old_data is not None and outcome.old_after.get(name) is not None and name in roles.old:
                before, after = outcome.old_before.get(name), outcome.old_after[name]
                change = replace(
                    change,
                    before=before,
                    after=after,
                    where=plan.old_data.title,
                    shown=outcome.shown.get(name, 0),
                )
            elif outcome.scores.get(name) is not None:
                before = outcome.before.get(name) if name in roles.old else None
                change = replace(change, before=before, after=outcome.scores[name], where=_scoring_title(plan))
            changes.append(change)
        return tuple(changes)

    @property
    def scoring(self) -> str:
        """The images that were given for scoring; empty where a part of the data is held out."""
        return _scoring_title(self.plan) if self.plan.lesson.scoring is not None else ""

    def decision(self, outcome: Outcome) -> Decision:
        """What the gate says."""
        return decide(self.changes(outcome), self.plan.old_data is not None, self.keep)

    def status(self, outcome: Outcome) -> str:
        """What the new model is marked with."""
        if self.decision(outcome).refused:
            return "refused"
        return "nothing learned" if nothing_learned(self.verdicts(outcome)) else "passed"

    def standing(self, outcome: Outcome) -> Standing:
        """What counts of a model in the choice between two."""
        return Standing.of(self.verdicts(outcome), self.decision(outcome), self.changes(outcome))

    def verdicts(self, outcome: Outcome) -> tuple[ClassVerdict, ...]:
        model, lesson = self.place(self.decision(outcome).refused), self.plan.lesson
        # A model in memory is in no folder from which its lesson could go on.
        continues = not lesson.practises and lesson.known is not None and self.origin is not None
        beside = self.origin is not None and self.origin.resolve().parent == model.resolve().parent
        place = Place(str(model), self.data, continues, None if beside else str(self.origin), self.scoring)
        return judge(self.plan.lesson.roles.taught, outcome.scores, outcome.errors, outcome.alpha, place)


def learned_before(ending: Ending, request: Mapping[str, Any]) -> Outcome | None:
    """What this very lesson measured, if its model is written already; a kill may have come before it was told."""
    out, work = ending.out, ending.work
    outcome, earlier = outcome_of(work), directory.begun(work)
    there = [place for place in (out, directory.refused_folder(out)) if directory.is_there(place)]
    if there:
        same = earlier is not None and not directory.changes(request, earlier[1])
        if outcome is None or not same or store.load(there[0]).classes.names != ending.plan.lesson.roles.names:
            raise directory.exists_already(there[0])
        return outcome
    if outcome is not None and outcome.delivered:
        raise UserError(
            f"this was learned already, but the model is no longer in {out}: move it back there, or train it again "
            "with --fresh"
        )
    return None


def finish(
    ending: Ending,
    config: RunConfig,
    decided: Mapping[str, Any],
    before: StepResult | None,
    after: StepResult,
    until: float | None,
) -> Learned:
    """Score, compare (no longer than `until`), write the new bundle whole, and say what came of it."""
    work, plan, lesson = ending.work, ending.plan, ending.plan.lesson
    folder = directory.new_bundle(work, lesson)
    outcome = measure(
        work, plan, config, store.load(folder).model, before, after, _old_before(ending, config, decided), until
    )
    first = instant.given(work, lesson)
    if first is not None:
        choice = choose_of_two(ending.standing(first[0]), ending.standing(outcome))
        if choice.untold:
            write_marked(ending, outcome, store.load(folder), directory.trained_folder(work), overwrite=True)
        if choice.instant:
            outcome, folder = first
            instant.take_pictures(work)
        outcome = replace(outcome, chosen="instant" if choice.instant else "trained", why=choice.why)
    grown = store.load(folder)
    if ending.guarantee:
        old = store.load(directory.old_bundle(work)).model
        outcome = guaranteed(ending, config, outcome, old, grown.model)
    outcome = replace(outcome, scored_on=ending.scored_on)
    outcome.write(work)
    _deliver(ending, outcome, grown)
    return told(ending, outcome)


def guaranteed(ending: Ending, config: RunConfig, outcome: Outcome, old: Any, new: Any) -> Outcome:
    """The outcome with the largest change of any old score; any is too much."""
    largest = largest_change(ending.work, ending.plan, config, old, new)
    if largest != 0:
        raise UserError(
            f"the guarantee does not hold: an old score changed by {largest:g}; nothing was written but the training's "
            "folder. The same version, device and number of threads are needed for it"
        )
    new.cpu()
    return replace(outcome, largest_change=largest)


def _old_before(ending: Ending, config: RunConfig, decided: Mapping[str, Any]) -> Mapping[str, float | None]:
    """What the old model scored on data of old classes."""
    plan = ending.plan
    if plan.old_data is None or decided.get("old_before"):
        return decided.get("old_before") or {}
    device = build_fabric(config.training).device  # a plan of before
    old = store.load(directory.old_bundle(ending.work)).model.to(device)
    return score_old(old, 0, config, plan, plan.old_data, device)


def _deliver(ending: Ending, outcome: Outcome, grown: store.Bundle, overwrite: bool = False) -> None:
    """Write the bundle to where the gate lets it go."""
    write_marked(ending, outcome, grown, ending.place(ending.decision(outcome).refused), overwrite)


def write_marked(ending: Ending, outcome: Outcome, grown: store.Bundle, folder: Path, overwrite: bool = False) -> None:
    """Write the bundle, marked with what was found, and the way back to the model before it."""
    decision, roles = ending.decision(outcome), ending.plan.lesson.roles
    classes = grown.classes
    if ending.plan.old_data is not None:
        classes = _with_forgetting(classes, roles.old, outcome.old_before, outcome.old_after)
    note = final_words.kept_sentence(decision) if roles.old else ""
    *earlier, last = classes.lineage
    # It may have been scored on other images when it was written first.
    scores = {**last.scores, **{name: outcome.scores.get(name) for name in roles.names if name in last.scores}}
    marked = last.model_copy(update={"status": ending.status(outcome), "note": note, "scores": scores})
    classes = classes.model_copy(update={"lineage": (*earlier, marked)})
    place = store.save(replace(grown, classes=classes), folder, overwrite=overwrite)
    if ending.origin is not None:
        keep_difference(place, ending.origin)


def told(ending: Ending, outcome: Outcome) -> Learned:
    """Drop what was for going on, and say what came of it."""
    out, work, say = ending.out, ending.work, ending.say
    roles, scores = ending.plan.lesson.roles, outcome.scores
    changes, decision, verdicts = ending.changes(outcome), ending.decision(outcome), ending.verdicts(outcome)
    place, other = ending.place(decision.refused), ending.place(not decision.refused)
    if directory.is_there(other) and not directory.is_there(place):  # another --keep, or other images for scoring
        _deliver(ending, outcome, store.load(other))
        shutil.rmtree(other)
    there = store.load(place)
    if there.classes.lineage[-1].status != ending.status(outcome):
        # Only then: models that learned on from this one know it by its sha256, which its marks are part of.
        _deliver(ending, outcome, there, overwrite=True)
    replace(outcome, delivered=True).write(work)
    directory.tidy(work)
    classes = store.load(place).classes
    say("")
    say(final_words.changes_table(changes))
    for line in final_words.legend(changes, outcome.compared):
        say(line)
    if not any(value is not None for value in scores.values()):
        reason = f"{ending.scoring} show none of the classes" if ending.scoring else "no image was left for it"
        say(f"nothing was scored: {reason}; give --val DATA{' that shows them' if ending.scoring else ''}")
    if roles.old and ending.plan.old_data is None:
        say("IoU of old classes without labels is not measured: give --old-val DATA, images labelled for them")
    say("")
    lines = final_words.verdict_lines(verdicts, changes, decision)
    lines += final_words.choice_lines(outcome.chosen, outcome.why)
    if outcome.largest_change is not None:
        lines.append(final_words.guarantee_line(outcome.largest_change, outcome.compared))
    old_val = ending.plan.old_data is not None
    aside = directory.trained_folder(work) if directory.is_there(directory.trained_folder(work)) else None
    lines += final_words.kept_lines(work, aside)
    lines += final_words.last_lines(
        place, out, len(classes.names), verdicts, decision, old_val, ending.plan.lesson.practises, ending.trained
    )
    say(table(lines, indent=0))
    return Learned(
        place,
        classes,
        roles.new,
        scores,
        outcome.old_before,
        outcome.old_after,
        verdicts,
        changes,
        decision,
        work,
        outcome.compared,
        outcome.chosen,
        outcome.why,
        outcome.largest_change,
        ending.trained,
        aside,
    )


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
    return f"the images for scoring {f'in {place.absolute().name}' if place is not None else f'of {lesson.scoring}'}"
