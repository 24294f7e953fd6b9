"""`comastre learn`: teach a model the new classes of the user's data without forgetting the old ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comastre.arguments import texts
from comastre.bundle.history import digest
from comastre.errors import UserError
from comastre.learning import directory, messages
from comastre.learning.again import measured_again
from comastre.learning.beginning import begin, times_of
from comastre.learning.class_names import read_pairs
from comastre.learning.comparing import choose_sights
from comastre.learning.gate import read_keep
from comastre.learning.instant import at_once, instant_of
from comastre.learning.learned import Learned
from comastre.learning.outcome import Ending, finish, learned_before, told
from comastre.learning.plan import NameChoices, make_plan
from comastre.learning.request import backbone_weights as given_weights
from comastre.learning.request import (
    check_amounts,
    check_settings,
    held_out_share,
    refuse_contradictions,
    request_of,
    scored_on,
)
from comastre.learning.schedule import choose, learns_at_once, total_iterations
from comastre.learning.starting_model import open_model, reopen, run_settings
from comastre.paths import user_path
from comastre.prediction.model import Model
from comastre.text import Say, brief
from comastre.text import say as say_line
from comastre.training.launch import build_fabric
from comastre.training.lock import locked
from comastre.training.run import run
from comastre.training.stopping import Interrupted


def learn(
    model: Model | str | Path,
    data: str | Path,
    *,
    out: str | Path,
    val: str | Path | None = None,
    old_val: str | Path | None = None,
    unlabelled: str | Path | None = None,
    keep: float | str | None = None,
    minutes: float | None = None,
    iterations: int | None = None,
    instant: bool | None = None,
    guarantee: str | None = None,
    same_class: Mapping[str, str] | Sequence[str] = (),
    new_class: Sequence[str] = (),
    only: Sequence[str] = (),
    backbone_weights: str | None = None,
    continued: bool = False,
    parent: str | Path | None = None,
    fresh: bool = False,
    settings: Mapping[str, Any] | None = None,
    began: float | None = None,
    say: Say = say_line,
) -> Learned:
    """Teach `model` the classes of `data` that it does not know, and write the grown model to the new folder `out`.

    `model` is a bundle's folder, a hub id, a `comastre.Model`, or `new:small` for a first step from nothing. `data` is
    a folder of images and masks or a COCO JSON file, labelled for the new classes; old classes that it labels too are
    learned from. Iterations, batch and size of the images follow the data and what the model was trained with, unless
    `iterations`, `minutes` (at most, scoring included) or `settings` (fields of the configuration, by section) say
    otherwise. A part of the data is held out for scoring, unless `val` is given; on `old_val` forgetting is measured.
    Without labels the old
    and the new model are compared on the new images and on those of the folder `unlabelled`. Where less than `keep`
    percent of the old classes is kept (by default 90 of their scores on `old_val`, or 60 of their pixels without it),
    the model is refused and written to `<out>-refused`; 0 switches that off. Training happens in the folder
    `<out>.training`: interrupted, the same call goes on there, unless `fresh`.

    A model of CoMasTRe's first learns by one look at each image, in seconds; then it is trained, and the better of the
    two is handed over. `instant=True` stops after the look, `instant=False` leaves it out. `guarantee="exact"` stops
    there, too, and makes sure that no score of an old class has moved.

    Where nothing in the data is new, what the model knows is practised. With `continued`, `model` is what a lesson gave
    and goes on with that lesson: its own classes, from where it ended, taught by the model before it, which is looked
    for beside it or in `parent`. The minutes count from this call, or from `began` (of `time.monotonic`).

    Example:
        import comastre

        learned = comastre.learn("model", "photos", out="new-model", iterations=2)
        print(learned.new_classes, learned.scores)
        learned.model.predict("photos/images/first.png").label_map
    """
    began = time.monotonic() if began is None else began
    out = user_path(out, "out")
    settings = settings or {}
    if not isinstance(settings, Mapping):
        raise UserError(f"settings is {brief(settings)} but must be sections, as {{'training': {{'batch_size': 4}}}}")
    check_amounts(minutes, iterations)
    least = read_keep(keep)
    weights, settings = given_weights(settings)
    refuse_contradictions(settings, instant, guarantee)
    if parent is not None and not continued:
        raise UserError("--parent is for a lesson that goes on: give it with --continue NEW_MODEL, or leave it away")
    method = settings.get("method")
    if continued:
        starting, lesson_before = reopen(model, parent, method)
        directory.refuse_bad_out(out, lesson_before.folder)
    else:
        starting, lesson_before = open_model(model, backbone_weights or weights, method), None
    if instant or guarantee:
        starting = at_once(starting, "--guarantee" if guarantee else "--instant")
        settings = {**settings, "method": starting.description.method}
    directory.refuse_bad_out(out, starting.folder)
    check_settings(settings, starting)
    same = dict(same_class) if isinstance(same_class, Mapping) else read_pairs(texts("same_class", same_class))
    share = held_out_share(settings)
    choices = NameChoices(same, texts("new_class", new_class), texts("only", only))
    parent_digest = starting.sha256() if lesson_before is None else digest(lesson_before.folder)
    plan = make_plan(starting.known, data, val, old_val, choices, share, parent_digest, lesson_before)
    lesson = plan.lesson
    config = choose(run_settings(starting), plan.amounts, lesson.source.settings(), settings, iterations)
    if lesson.practises and (instant or guarantee):
        raise UserError("nothing in the data is new to the model, and one look practises nothing: leave --instant away")
    first = instant_of(starting, plan, settings) if instant is None else None
    if instant and not learns_at_once(config, plan.amounts):
        raise UserError(
            "--instant trains nothing, but queries of its own (own_queries.number) are trained in every lesson: leave "
            "--instant away, or give --guarantee exact in its place"
        )
    if learns_at_once(config, plan.amounts) and (minutes is not None or iterations is not None):
        given = "--minutes" if minutes is not None else "--iterations"
        other = "" if instant or guarantee else "; --continue trains the last lesson of a model that was taught so"
        raise UserError(
            f"{given} says how long to train, but {config.method} looks once at each image: leave it away{other}"
        )
    say(messages.understood(plan, starting.title))
    for line in messages.warnings(plan, config):
        say(line)

    work = directory.training_folder(out)
    origin = starting.folder if lesson_before is None else lesson_before.folder
    sights = choose_sights(lesson, unlabelled)
    images = scored_on(plan, sights)
    trained = not learns_at_once(config, plan.amounts)
    ending = Ending(out, work, plan, least, str(data), origin, say, guarantee is not None, images, trained)
    request = request_of(starting, plan, minutes, iterations, settings)
    if instant is False:
        request["--no-instant"] = True
    if guarantee is not None:
        request["--guarantee"] = guarantee  # measured at the end, so not there where nobody asked for it
    build_fabric(config.training)  # a device that is not there is refused before anything is written
    if fresh:
        if directory.is_there(out):  # before its training is put aside for nothing
            raise directory.exists_already(out)
        directory.put_aside(work)
    with locked(work):  # until the new model is written: a second lesson here would train in the same files
        known = learned_before(ending, request)
        if known is not None:
            if directory.differing(ending.scored_on, known.scored_on):
                own = first.config if first is not None and known.chosen == "instant" else None
                known = measured_again(ending, own, known, starting, sights, minutes, began)
            return told(ending, known)
        earlier = directory.begun(work)
        if earlier is None:
            begin(ending, config, starting, request, minutes, sights, began, first)
            config, decided = directory.decided(work)
        else:
            config, decided = earlier
            directory.refuse_changes(work, request, decided)
            directory.refuse_other_scoring(work, ending.scored_on, decided)
            total = total_iterations(config, plan.amounts)
            say(f"training      goes on in {work}" + (f", {total} iterations in all" if total else ""))
        # A lesson that was interrupted had its minutes before.
        until = began + 60 * minutes if minutes is not None and earlier is None else None
        parts = replace(lesson.parts(), times=times_of(decided, until))
        try:
            results = run(config, work, parts=parts, start=directory.start_of(work))
        except Interrupted as stop:
            raise Interrupted(
                f"stopped; what is done is saved in {work}: give the same command to go on", stop.signal_number
            ) from None
        before = results.steps[0] if starting.known is not None else None
        return finish(ending, config, decided, before, results.steps[lesson.step], until)
