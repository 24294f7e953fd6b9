"""`comastre learn`: teach a model the new classes of the user's data without forgetting the old ones."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comastre.bundle import store
from comastre.class_table import ClassTable
from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.evaluation.model import evaluate_model
from comastre.evaluation.results import StepResult
from comastre.learning import directory as workplace
from comastre.learning import messages as words
from comastre.learning.class_names import read_pairs
from comastre.learning.images import HELD_OUT, scoring_part
from comastre.learning.lesson import keep_scores, mean_score, measured_seconds
from comastre.learning.plan import Flags, OldData, Study, study
from comastre.learning.schedule import choose, iterations_within, total_iterations, with_iterations, with_pace
from comastre.learning.start import Student, open_student
from comastre.methods.comastre.segmenter import Segmenter
from comastre.prediction.model import Model
from comastre.text import say as say_line
from comastre.training.launch import build_fabric
from comastre.training.run import run
from comastre.training.stopping import Interrupted

Say = Callable[[str], None]
_ENDLESS = 1_000_000  # iterations: timing leaves the loop by itself
# Fields that a lesson decides itself, and what to give instead.
_DECIDED = {
    "training.iterations": "--iterations",
    "training.iterations_per_class": "--iterations",
    "data.dataset": "--data",
    "data.root": "--data",
    "data.train_json": "--data",
    "data.val_json": "--val",
    "continual": "--data",
    "model": "another model",
}


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
        loaded = store.load(self.path)
        return Model(loaded.model, loaded.classes)


def learn(
    model: Model | str | Path,
    data: str | Path,
    *,
    out: str | Path,
    val: str | Path | None = None,
    old_val: str | Path | None = None,
    minutes: float | None = None,
    iterations: int | None = None,
    same_class: Mapping[str, str] | Sequence[str] = (),
    new_class: Sequence[str] = (),
    only: Sequence[str] = (),
    backbone_weights: str | None = None,
    fresh: bool = False,
    settings: Mapping[str, Any] | None = None,
    say: Say = say_line,
) -> Learned:
    """Teach `model` the classes of `data` that it does not know, and write the grown model to the new folder `out`.

    `model` is a bundle's folder, a hub id, a `comastre.Model`, or `new:small` for a first step from nothing. `data` is
    a folder of images and masks or a COCO JSON file, labelled for the new classes; old classes that it labels too are
    learned from. Iterations, batch and size of the images follow the data and what the model was trained with, unless
    `iterations`, `minutes` (at most) or `settings` (fields of the configuration, by section) say otherwise. A part of
    the data is held out for scoring, unless `val` is given; on `old_val` forgetting is measured. Training happens in
    the folder `<out>.training`: interrupted, the same call goes on there, unless `fresh`.

    Example:
        import comastre

        learned = comastre.learn("model", "photos", out="new-model", iterations=2)
        print(learned.new_classes, learned.scores)
        learned.model.predict("photos/images/first.png").label_map
    """
    out = Path(out).expanduser()
    settings = settings or {}
    _check_amounts(minutes, iterations)
    student = open_student(model, backbone_weights)
    workplace.refuse_bad_out(out, student.folder)
    _check_settings(settings, student)
    same = dict(same_class) if isinstance(same_class, Mapping) else read_pairs(same_class)
    share = settings.get("data", {}).get("held_out", HELD_OUT)
    found = study(student.known, data, val, old_val, Flags(same, tuple(new_class), tuple(only)), share)
    config = choose(
        student.config, student.recorded, found.amounts, found.lesson.source.settings(), settings, iterations
    )
    say(words.understood(found, student.title))
    for line in words.warnings(found, config):
        say(line)

    work = workplace.workplace(out)
    asked = _asked(student, found, minutes, iterations, settings)
    if fresh:
        workplace.put_aside(work)
    earlier = workplace.begun(work)
    if earlier is not None:
        workplace.refuse_changes(work, asked, earlier[1])
        config = earlier[0]
        say(f"training      goes on in {work}, {total_iterations(config, found.amounts)} iterations in all")
    else:
        config = _begin(work, config, student, found, asked, minutes, say)
    try:
        results = run(config, work, parts=found.lesson.parts())
    except Interrupted as stop:
        raise Interrupted(
            f"stopped; what is done is saved in {work}: give the same command to go on", stop.signal_number
        ) from None
    before = results.steps[0] if student.known is not None else None
    return _finish(out, work, config, found, before, results.steps[found.lesson.step], say)


# --- before training -------------------------------------------------------------------------------------------------


def _begin(
    work: Path,
    config: RunConfig,
    student: Student,
    found: Study,
    asked: Mapping[str, Any],
    minutes: float | None,
    say: Say,
) -> RunConfig:
    """Measure how fast this machine is, decide how long to train, and set the run up."""
    lesson, amounts = found.lesson, found.amounts
    device = build_fabric(config.training).device  # refused before anything is written
    scenario = lesson.scenario(config.continual.setting)
    before = lesson.unscored(scenario, 0) if student.known is not None else None
    timed = with_iterations(config, amounts, _ENDLESS)
    workplace.set_up(work, timed, student, lesson, before, {"asked": asked, "decided": False})
    try:
        seconds = _seconds_per_iteration(timed, work, found)
    except Interrupted as stop:
        raise Interrupted(
            "stopped before training began: the same command starts it again", stop.signal_number
        ) from None
    except UserError:
        shutil.rmtree(work, ignore_errors=True)  # nothing but what was written a moment ago
        raise
    wanted = total_iterations(config, amounts)
    if minutes is not None:
        scored = len(lesson.data(config)[1]) + (2 * len(_old_images(found.old_data)) if found.old_data else 0)
        fitting = iterations_within(minutes, seconds, scored * seconds / config.training.batch_size)
        config = with_iterations(config, amounts, min(wanted, fitting))
    config = with_pace(config, seconds)
    say(f"training      {words.schedule(config, amounts, seconds, wanted, str(device))}")
    say(f"in            {work}: interrupted, the same command goes on there")
    if before is not None and lesson.scored.intersection(lesson.meaning.old):
        assert student.segmenter is not None
        held_out = lesson.data(config)[1]
        before = lesson.evaluate(student.segmenter.to(device), held_out, scenario, 0, config, device, 0.0)
        student.segmenter.cpu()
    workplace.set_up(work, config, student, lesson, before, {"asked": asked, "decided": True, "seconds": seconds})
    return config


def _seconds_per_iteration(config: RunConfig, work: Path, found: Study) -> float:
    """Some iterations of the very run, which are then forgotten."""
    try:
        run(config, work, parts=found.lesson.timed_parts())
    except UserError as error:
        if isinstance(error, Interrupted):
            raise
        seconds = measured_seconds(error)
        if seconds is None:
            raise UserError(str(error).replace("set backbone.weights to", "give --backbone-weights")) from error
        return seconds
    raise AssertionError("the loop ended without its batches")


def _check_amounts(minutes: float | None, iterations: int | None) -> None:
    if minutes is not None and iterations is not None:
        raise UserError("--minutes and --iterations both say how long to train: give one of them")
    if minutes is not None and not (0 < minutes < math.inf):
        raise UserError(f"--minutes is {minutes:g} but must be more than 0")
    if iterations is not None and iterations < 1:
        raise UserError(f"--iterations is {iterations} but must be 1 or more")


def _check_settings(settings: Mapping[str, Any], student: Student) -> None:
    for section, values in settings.items():
        for name in values if isinstance(values, Mapping) else ():
            instead = _DECIDED.get(f"{section}.{name}") or _DECIDED.get(section)
            free = section == "model" and (student.known is None or name == "inference")
            if instead is not None and not free:
                raise UserError(f"--{section}.{name} cannot be set for a lesson: give {instead} instead")


def _asked(
    student: Student, found: Study, minutes: float | None, iterations: int | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What must be the same for a lesson to go on, by the name that a user knows it by."""
    lesson = found.lesson
    images = hashlib.sha256(repr((found.names, lesson.held_out, dict(found.shown))).encode()).hexdigest()[:16]
    return {
        "the model": student.digest(),
        "the new classes": list(lesson.meaning.new),
        "the old classes": sorted(lesson.meaning.annotated),
        "the images": images,
        "--minutes": minutes,
        "--iterations": iterations,
        "settings": {section: _plain(values) for section, values in settings.items()},
    }


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


# --- after training --------------------------------------------------------------------------------------------------


def _finish(
    out: Path,
    work: Path,
    config: RunConfig,
    found: Study,
    before: StepResult | None,
    after: StepResult,
    say: Say,
) -> Learned:
    """Score, write the new bundle whole, and say what came of it."""
    lesson, meaning = found.lesson, found.lesson.meaning
    grown = store.load(workplace.new_bundle(work, lesson))
    scores = {name: after.per_class.get(name) for name in meaning.names if name in lesson.scored}
    old_before: Mapping[str, float | None] = {}
    old_after: Mapping[str, float | None] = {}
    classes = grown.classes
    if found.old_data is not None:
        say(f"scoring the old and the new model on {found.old_data.title}")
        old_before = _score_old(store.load(workplace.old_bundle(work)).model, 0, config, found, found.old_data)
        old_after = _score_old(grown.model, 1, config, found, found.old_data)
        classes = _with_forgetting(classes, meaning.old, old_before, old_after)
    store.save(grown.model.cpu(), classes, out)
    workplace.tidy(work)

    say("")
    if any(value is not None for value in scores.values()):
        say(f"IoU in % on {_scoring_title(found)}:")
        say(words.outcome(tuple(scores), before.per_class if before is not None else {}, scores))
    else:
        say("nothing was scored: no image was left for it; give --val DATA")
    if found.old_data is not None:
        say(f"IoU in % on {found.old_data.title}, which measures forgetting:")
        say(words.forgetting(meaning.old, meaning.new, old_before, old_after))
        say(words.kept(meaning.old, old_before, old_after))
    elif meaning.old:
        say("what was forgotten of the old classes is not measured: give --old-val DATA, images labelled for them")
    say(f"the new model is in {out}, {len(classes.names)} classes; try `comastre predict {out} IMAGES --out DIR`")
    say(f"settings and logs of the training are in {work}, which can be deleted")
    return Learned(out, classes, meaning.new, scores, old_before, old_after)


def _old_images(old_data: OldData) -> Any:
    return scoring_part(old_data.source)


def _score_old(
    model: Segmenter, step: int, config: RunConfig, found: Study, old_data: OldData
) -> Mapping[str, float | None]:
    """IoU of the classes that the data of old classes shows."""
    device = build_fabric(config.training).device
    dataset = found.lesson.relabelled(_old_images(old_data), old_data.labels)
    scenario = found.lesson.scenario(config.continual.setting)
    # Images may differ in size here even where those of the lesson do not.
    evaluation = config.evaluation.model_copy(update={"batch_size": 1})
    config = config.model_copy(update={"evaluation": evaluation})
    result = evaluate_model(model.to(device), dataset, scenario, step, config, device)
    model.cpu()
    return keep_scores(result, old_data.scored, found.lesson.meaning).per_class


def _with_forgetting(
    classes: ClassTable, old: Sequence[str], before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> ClassTable:
    """The class table whose last step also says what was forgotten."""
    *earlier, last = classes.lineage
    means = {"old classes before": mean_score(before, old), "old classes after": mean_score(after, old)}
    known = {name: value if math.isfinite(value) else None for name, value in means.items()}
    last = last.model_copy(update={"scores": {**last.scores, **known}})
    return classes.model_copy(update={"lineage": (*earlier, last)})


def _scoring_title(found: Study) -> str:
    lesson = found.lesson
    if lesson.scoring is None:
        return f"{len(lesson.held_out)} held-out {'image' if len(lesson.held_out) == 1 else 'images'}"
    place = lesson.scoring.file or lesson.scoring.root
    return f"the images for scoring in {place}" if place is not None else str(lesson.scoring)
