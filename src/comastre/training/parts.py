"""What the loop drives, as one value of functions: the real things by default, small stand-ins in tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from comastre.bundle import history, store
from comastre.bundle.store import Bundle, Description
from comastre.class_table import LineageStep, class_table
from comastre.config.recipe import recipe_of
from comastre.config.run import RunConfig
from comastre.config.run_files import step_bundle
from comastre.data.dataset import SegmentationDataset
from comastre.errors import UserError
from comastre.evaluation.evaluate import EvaluationPlan
from comastre.evaluation.results import Results, StepResult
from comastre.methods.build import build_method, setup_of
from comastre.methods.protocol import Method
from comastre.stream.build import build_stream
from comastre.stream.scenario import Scenario, Task
from comastre.training.clock import Times
from comastre.training.memory import refuse_too_large

OBJECT = "object"
"""The one class of a model that tells no classes apart."""


@dataclass(frozen=True)
class Prepared:
    """What a run needs of the user's data, made before anything is written."""

    training_set: SegmentationDataset
    validation_set: SegmentationDataset
    scenario: Scenario


@dataclass(frozen=True)
class LearnedStep:
    """A step that has just been learned, for those who evaluate and keep it."""

    model: Any
    """In eval mode."""
    task: Task
    prepared: Prepared
    config: RunConfig
    device: torch.device
    seconds: float = 0.0
    """Of training."""
    scored: Callable[[int], None] | None = None
    """Told how many images more are scored."""

    @property
    def plan(self) -> EvaluationPlan:
        """What it is scored on."""
        return EvaluationPlan.of(self.config, self.prepared.validation_set, self.prepared.scenario, self.task.step)


def load_model(folder: Path) -> Any:
    """The model of a bundle, on the CPU."""
    return store.load(folder).model


@dataclass(frozen=True)
class Parts:
    """Functions that the loop calls; spawned processes get them by name, so each is defined at a module's top level."""

    data: Callable[[RunConfig], tuple[SegmentationDataset, SegmentationDataset]]
    """Training and validation set."""
    scenario: Callable[[RunConfig, SegmentationDataset], Scenario]
    method: Callable[[RunConfig], Method]
    batches: Callable[[SegmentationDataset, Task, RunConfig, int, int, int], Any]
    """(dataset, task, config, iterations done, rank, number of processes): a generator of each iteration's parts."""
    evaluate: Callable[[LearnedStep], StepResult]
    save: Callable[[LearnedStep, Path, Results], None]
    """Write the model bundle to the folder; the results have this step."""
    title: str | None = None
    """What a step is called on the screen; by default its number."""
    examples: Callable[[LearnedStep, Path], None] | None = None
    """Keep pictures for the report in the run directory."""
    load: Callable[[Path], Any] = load_model
    times: Times = field(default_factory=Times)
    """A time limit, and what the screen says of the time left."""


def prepare(config: RunConfig, parts: Parts) -> Prepared:
    """Look at data and setting, each of which may be refused."""
    refuse_too_large(config)
    training_set, validation_set = parts.data(config)
    validation_set.presence()  # finds bad files, which otherwise would end the run only after its first step
    return Prepared(training_set, validation_set, parts.scenario(config, training_set))


def default_parts() -> Parts:
    """The real things."""
    from comastre.stream.loading import training_batches

    return Parts(datasets, scenario_of, method_of, training_batches, evaluate_step, save_step, examples=_examples)


def datasets(config: RunConfig) -> tuple[SegmentationDataset, SegmentationDataset]:
    """Training and validation set of the configured dataset."""
    from comastre.data.build import build_datasets

    return build_datasets(config.data)


def scenario_of(config: RunConfig, training_set: SegmentationDataset) -> Scenario:
    """The stream of tasks; joint training learns all classes in one step."""
    return build_stream(config, training_set.presence(), training_set.class_names)


def method_of(config: RunConfig) -> Method:
    """The configured method."""
    return build_method(config.method, setup_of(config))


def evaluate_step(learned: LearnedStep) -> StepResult:
    """Scores on the validation set."""
    from comastre.evaluation.model import evaluate_model

    recognises = "labels" in learned.config.spec.gives
    result = evaluate_model(learned.model, learned.plan, learned.device, recognises, learned.scored)
    return replace(result, seconds=learned.seconds)


def _examples(learned: LearnedStep, run: Path) -> None:
    """Pictures for the report, of a model that recognises the classes of its stream."""
    from comastre.evaluation.examples import record_examples

    if "labels" in learned.config.spec.gives:
        plan = learned.plan
        record_examples(learned.model.segment, run, plan.dataset, plan.scenario, plan.step, plan.view, learned.device)


def save_step(learned: LearnedStep, folder: Path, results: Results) -> None:
    """The model bundle of one step, with the lineage of all steps so far."""
    training_set, task, config = learned.prepared.training_set, learned.task, learned.config
    known = [*task.old_classes, *task.new_classes]
    colours = [training_set.colours[0], *(training_set.colours[class_id] for class_id in known)]
    names = results.class_order[: len(known)]
    if not results.steps[-1].recognises:  # its classes were never told apart
        names, colours = (OBJECT,), colours[:2]
    today = datetime.now(UTC).date().isoformat()
    table = class_table(
        names,
        learned.model.tasks,
        colours,
        background="background" if training_set.has_background else "void",
        lineage=_lineage(results, folder, today),
    )
    store.save(Bundle(learned.model, table, describe(config)), folder, overwrite=True)


def describe(config: RunConfig) -> Description:
    """What a bundle says of a model that this configuration trained."""
    view = config.view.at(config.data.crop)
    return Description(config.method, config.size, config.backbone, config.method_settings, recipe_of(config), view)


def _lineage(results: Results, folder: Path, today: str) -> list[LineageStep]:
    """How the model of `folder` came to be: as the step before has it, whose sha256 it says, and the newest step."""
    *earlier, newest = results.steps
    lineage, parent = [_lineage_of(results, done, today) for done in earlier], None
    if earlier:
        before = folder.with_name(step_bundle(Path(), newest.step - 1).name)
        try:
            found, parent = list(store.classes_of(before).lineage), history.digest(before)
            lineage = found if len(found) == len(earlier) else lineage
        except UserError:  # somebody has moved it
            parent = None
    last = _lineage_of(results, newest, today)
    return [*lineage, last.model_copy(update={"parent": parent})]


def _lineage_of(results: Results, done: StepResult, today: str) -> LineageStep:
    scores = done.scores(results.convention)
    return LineageStep(
        step=done.step,
        date=today,
        data=f"{results.dataset} {_kind(results, done)}, {done.images} images",
        new_classes=done.new_classes if done.recognises else (OBJECT,),
        # None where no validation image shows any of the classes.
        scores={name: score if score is not None and math.isfinite(score) else None for name, score in scores.items()},
    )


def _kind(results: Results, done: StepResult) -> str:
    return f"{results.setting} {results.protocol}" if done.recognises else "stage 1 alone"
