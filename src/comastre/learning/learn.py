"""`comastre learn`: teach a model the new classes of the user's data without forgetting the old ones."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comastre.arguments import positive_number, texts, whole_number
from comastre.bundle import store
from comastre.config import methods
from comastre.config.older import upgraded
from comastre.config.run import MOST_ITERATIONS, RunConfig
from comastre.errors import UserError
from comastre.evaluation.image_progress import ImageProgress
from comastre.learning import directory, messages
from comastre.learning.class_names import read_pairs
from comastre.learning.images import HELD_OUT
from comastre.learning.lesson import Lesson
from comastre.learning.outcome import Learned, Say, finish, learned_before, old_images, told
from comastre.learning.plan import NameChoices, Plan, make_plan
from comastre.learning.schedule import choose, iterations_within, total_iterations, with_iterations, with_pace
from comastre.learning.starting_model import StartingModel, open_model, run_settings
from comastre.paths import user_path
from comastre.prediction.model import Model
from comastre.text import brief
from comastre.text import say as say_line
from comastre.training.launch import build_fabric
from comastre.training.lock import locked
from comastre.training.pace import seconds_per_iteration
from comastre.training.parts import LearnedStep, Prepared
from comastre.training.run import run
from comastre.training.start import Start
from comastre.training.stopping import Interrupted

# Fields that a lesson decides itself, and what to give instead.
_DECIDED = {
    "training.iterations": "--iterations",
    "training.iterations_per_class": "--iterations",
    "data.dataset": "--data",
    "data.root": "--data",
    "data.train_json": "--data",
    "data.val_json": "--val",
    "continual": "--data",
    "size": "another model",
    "backbone": "another model",
}


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
    out = user_path(out, "out")
    settings = settings or {}
    if not isinstance(settings, Mapping):
        raise UserError(f"settings is {brief(settings)} but must be sections, as {{'training': {{'batch_size': 4}}}}")
    _check_amounts(minutes, iterations)
    weights, settings = _backbone_weights(settings)
    starting = open_model(model, backbone_weights or weights, settings.get("method"))
    directory.refuse_bad_out(out, starting.folder)
    _check_settings(settings, starting)
    same = dict(same_class) if isinstance(same_class, Mapping) else read_pairs(texts("same_class", same_class))
    share = _held_out(settings)
    choices = NameChoices(same, texts("new_class", new_class), texts("only", only))
    plan = make_plan(starting.known, data, val, old_val, choices, share)
    lesson = plan.lesson
    config = choose(run_settings(starting), plan.amounts, lesson.source.settings(), settings, iterations)
    say(messages.understood(plan, starting.title))
    for line in messages.warnings(plan, config):
        say(line)

    work = directory.training_folder(out)
    request = _request(starting, plan, minutes, iterations, settings)
    build_fabric(config.training)  # a device that is not there is refused before anything is written
    if fresh:
        directory.put_aside(work)
    with locked(work):  # until the new model is written: a second lesson here would train in the same files
        known = learned_before(out, work, plan, request)
        if known is not None:
            return told(out, work, plan, known, say)
        earlier = directory.begun(work)
        if earlier is not None:
            directory.refuse_changes(work, request, earlier[1])
            config = earlier[0]
            say(f"training      goes on in {work}, {total_iterations(config, plan.amounts)} iterations in all")
        else:
            config = _begin(work, config, starting, plan, request, minutes, say)
        try:
            results = run(config, work, parts=lesson.parts(), start=directory.start_of(work))
        except Interrupted as stop:
            raise Interrupted(
                f"stopped; what is done is saved in {work}: give the same command to go on", stop.signal_number
            ) from None
        before = results.steps[0] if starting.known is not None else None
        return finish(out, work, config, plan, before, results.steps[lesson.step], say)


# --- before training -------------------------------------------------------------------------------------------------


def _begin(
    work: Path,
    config: RunConfig,
    starting: StartingModel,
    plan: Plan,
    request: Mapping[str, Any],
    minutes: float | None,
    say: Say,
) -> RunConfig:
    """Measure how fast this machine is, decide how long to train, and write that down."""
    lesson, amounts = plan.lesson, plan.amounts
    device = build_fabric(config.training).device
    scenario = lesson.scenario(config.continual.setting)
    seconds = _seconds_per_iteration(config, starting, lesson)
    wanted = total_iterations(config, amounts)
    if minutes is not None:
        scored = len(lesson.data(config)[1]) + (2 * len(old_images(plan.old_data)) if plan.old_data else 0)
        fitting = iterations_within(minutes, seconds, scored * seconds / config.training.batch_size)
        config = with_iterations(config, amounts, min(wanted, fitting))
    config = with_pace(config, seconds)
    say(f"training      {messages.schedule(config, amounts, seconds, wanted, str(device))}")
    say(f"in            {work}: interrupted, the same command goes on there")
    before = lesson.unscored(scenario, 0) if starting.bundle is not None else None
    if starting.bundle is not None and lesson.scored.intersection(lesson.roles.old):
        prepared = Prepared(*lesson.data(config), scenario)
        old = starting.bundle.model
        task, images = scenario.tasks[0], len(prepared.validation_set)
        with ImageProgress("scoring the old model", images) as progress:
            learned = LearnedStep(old.to(device), task, prepared, config, device, scored=progress.advance)
            before = lesson.evaluate(learned)
        old.cpu()
    directory.set_up(work, config, starting, lesson, before, {"request": request, "seconds": seconds})
    return config


def _seconds_per_iteration(config: RunConfig, starting: StartingModel, lesson: Lesson) -> float:
    """Of this lesson on this machine; nothing is kept of it."""
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


def _backbone_weights(settings: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Where the backbone of a new model starts, and the other settings: it decides more than the field alone."""
    backbone = settings.get("backbone")
    if not isinstance(backbone, Mapping) or "weights" not in backbone:
        return None, settings
    others = {name: value for name, value in backbone.items() if name != "weights"}
    rest = {name: value for name, value in settings.items() if name != "backbone"}
    return backbone["weights"], {**rest, "backbone": others} if others else rest


def _check_amounts(minutes: float | None, iterations: int | None) -> None:
    if minutes is not None and iterations is not None:
        raise UserError("--minutes and --iterations both say how long to train: give one of them")
    if minutes is not None:
        positive_number("--minutes", minutes)
    if iterations is not None:
        whole_number("--iterations", iterations, most=MOST_ITERATIONS)


def _held_out(settings: Mapping[str, Any]) -> float:
    """The share of images that is kept for scoring; whatever else is wrong with the settings, `choose` says."""
    section = settings.get("data")
    share = section.get("held_out", HELD_OUT) if isinstance(section, Mapping) else HELD_OUT
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise UserError(f"--data.held_out is {share!r} but must be a share between 0 and 1")
    return float(share)


def _check_settings(settings: Mapping[str, Any], starting: StartingModel) -> None:
    spec = methods.find(starting.description.method)
    settings = upgraded(settings, spec.section_name)
    decided = dict(_DECIDED)
    if starting.known is None:  # a new model may be of any shape
        del decided["size"], decided["backbone"]
    else:
        # How it predicts may change, what it is may not.
        shape = (name for name in spec.config.model_sections if name != "inference")
        decided |= {f"{spec.section_name}.{name}": "another model" for name in shape}
    for section, values in settings.items():
        for name in values if isinstance(values, Mapping) else ("",):
            field = f"{section}.{name}".rstrip(".")
            instead = decided.get(field) or decided.get(section)
            if instead is not None:
                raise UserError(f"--{field} cannot be set for a lesson: give {instead} instead")


def _request(
    starting: StartingModel, plan: Plan, minutes: float | None, iterations: int | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What must be the same for a lesson to go on, by the name that a user knows it by."""
    lesson = plan.lesson
    images = hashlib.sha256(repr((plan.names, lesson.held_out, dict(plan.shown))).encode()).hexdigest()[:16]
    return {
        "the model": starting.digest(),
        "the new classes": list(lesson.roles.new),
        "the old classes": sorted(lesson.roles.labelled_old),
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
