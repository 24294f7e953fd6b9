"""The directory in which a lesson trains, beside the model that it will write: an ordinary run with a plan."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from comastre.bundle import store
from comastre.config.run import RunConfig
from comastre.config.run_files import CHECKPOINTS, CONFIG, METRICS, RESULTS, STEPS, TENSORBOARD, step_bundle
from comastre.config.settings import load_config, write_config
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.evaluation.results import Results, StepResult
from comastre.learning.lesson import CONVENTION, Lesson
from comastre.learning.starting_model import StartingModel
from comastre.training.checkpoint import write_atomically
from comastre.training.directory import move_aside
from comastre.training.lock import locked
from comastre.training.start import Start

PLAN = "plan.json"
OUTCOME = "outcome.json"
_TRAINING, _INSTANT, _TRAINED = ".training", "instant", "trained"


def training_folder(out: Path) -> Path:
    """Where the model `out` is trained."""
    return out.with_name(f"{out.name}{_TRAINING}")


def refused_folder(out: Path) -> Path:
    """Where a model goes that the gate refused."""
    return out.with_name(f"{out.name}-refused")


def refuse_bad_out(out: Path, folder: Path | None) -> None:
    """Say why a new model cannot be written to `out`; `folder` is where the old one is."""
    if folder is not None:
        new, old = out.resolve(), folder.resolve()
        if new == old or old in new.parents or new in old.parents:
            raise UserError(f"--out {out} would touch the old model in {folder}: name another folder, beside it")
    if out.is_file():
        raise UserError(f"--out {out} is a file: name a new folder for the new model")
    work = training_folder(out)
    for place in (out, refused_folder(out)):
        if is_there(place) and not (work / OUTCOME).is_file():
            raise exists_already(place)
    if work.exists() and not work.is_dir():
        raise UserError(f"{work}, where the training would be kept, is a file: name another --out")
    if work.exists() and not (work / PLAN).exists() and any(not each.name.startswith(".") for each in work.iterdir()):
        raise UserError(f"{work}, where the training would be kept, holds other files: name another --out")


def is_there(out: Path) -> bool:
    """Whether there is a model, or anything else, where the new model is to be."""
    return out.is_dir() and any(out.iterdir())


def exists_already(out: Path) -> UserError:
    return UserError(f"--out {out} exists already and is never overwritten: name a new folder for the new model")


def begun(work: Path) -> tuple[RunConfig, Mapping[str, Any]] | None:
    """The configuration and the plan of a lesson whose schedule is decided; None where there is none yet."""
    try:
        plan = read_json(work / PLAN)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{work / PLAN} cannot be read ({error}): start over with --fresh") from None
    if not isinstance(plan, dict) or not isinstance(plan.get("request", {}), dict):
        raise UserError(f"{work / PLAN} does not hold the plan of a lesson: start over with --fresh")
    return (load_config(work / CONFIG), plan) if plan.get("decided") else None


def decided(work: Path) -> tuple[RunConfig, Mapping[str, Any]]:
    """What `set_up` has just written down."""
    found = begun(work)
    assert found is not None
    return found


def changes(request: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """What differs between a command and the one that a plan was made for."""
    return differing(request, plan.get("request", {}))


def differing(now: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """Names of what is not as it was."""
    return [name for name, value in now.items() if earlier.get(name) != value]


def refuse_changes(work: Path, request: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """A lesson goes on only if it is the same one."""
    changed = changes(request, plan)
    if changed:
        raise UserError(
            f"{work} holds the training of another command (what differs: {', '.join(changed)}): "
            "give the same command to go on, name another --out, or start over with --fresh"
        )


def refuse_other_scoring(work: Path, scored_on: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """What the old model scored and saw before the training is of the images that were given then."""
    earlier = plan.get("scored on")
    if not isinstance(earlier, Mapping):  # a plan of before
        return
    changed = differing(scored_on, earlier)
    if changed:
        raise UserError(
            f"{work} holds a training that is scored on other images (what differs: {', '.join(changed)}): give the "
            "same command to go on, and when it is finished this one, which then scores without training"
        )


def put_aside(work: Path) -> None:
    """Keep what is there under another name, with the model that the gate refused."""
    if work.exists():
        with locked(work):
            move_aside(work)
    refused = refused_folder(work.with_name(work.name.removesuffix(_TRAINING)))
    if is_there(refused):
        move_aside(refused)


def claim(work: Path, plan: Mapping[str, Any]) -> None:
    """Mark the folder as a lesson's before anything else is written into it."""
    write_atomically(work / PLAN, json_bytes({**plan, "decided": False}))


def set_up(
    work: Path,
    config: RunConfig,
    model: StartingModel,
    lesson: Lesson,
    before: StepResult | None,
    plan: Mapping[str, Any],
) -> None:
    """Write down what is decided, for this start and every later one; an earlier attempt is dropped.

    `before` is what the old model scored; None for a new model.
    """
    with locked(work):
        claim(work, plan)
        for old in (CHECKPOINTS, STEPS, TENSORBOARD):
            shutil.rmtree(work / old, ignore_errors=True)
        for file in (RESULTS, METRICS, OUTCOME):
            (work / file).unlink(missing_ok=True)
        write_config(config, work / CONFIG)
        if model.bundle is not None and before is not None:
            store.save(model.bundle, old_bundle(work), overwrite=True)
            first_results(config, lesson, before).write(work / RESULTS)
        write_atomically(work / PLAN, json_bytes({**plan, "decided": True}))


def start_of(work: Path) -> Start | None:
    """The old model with its scores, as a run in `work` starts from it; None where a new model learns."""
    if not old_bundle(work).exists():
        return None
    results = Results.load(work / RESULTS)
    return Start(old_bundle(work), replace(results, steps=results.steps[:1]))  # later ones are the lesson's


def first_results(config: RunConfig, lesson: Lesson, before: StepResult) -> Results:
    """The results of a lesson before it has taught anything: what the old model knows."""
    return Results(
        method=config.method,
        dataset=lesson.source.dataset,
        setting=config.continual.setting,
        protocol=config.continual.protocol,
        seed=config.seed,
        background=lesson.background == "background",
        class_order=lesson.stream_names,
        convention=CONVENTION,
        steps=(before,),
    )


def old_bundle(work: Path) -> Path:
    """The copy of the old model that a lesson keeps."""
    return step_bundle(work, 0)


def new_bundle(work: Path, lesson: Lesson) -> Path:
    """The model after the lesson, as the loop writes it."""
    return step_bundle(work, lesson.step)


def instant_folder(work: Path) -> Path:
    """Where the model is that learned by one look, before the training."""
    return work / _INSTANT


def trained_folder(work: Path) -> Path:
    """Where the trained model is kept, if the instant one was handed over for want of images to compare them on."""
    return work / _TRAINED


def tidy(work: Path) -> None:
    """Drop what was for going on: with the new model written, only its logs, settings and scores are of use."""
    for folder in (CHECKPOINTS, STEPS, _INSTANT):
        shutil.rmtree(work / folder, ignore_errors=True)
