"""What the loop drives, as one value of functions: the real things by default, small stand-ins in tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from comastre.bundle import store
from comastre.class_table import LineageStep, class_table
from comastre.config.recipe import recipe_of
from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset
from comastre.evaluation.results import Results, StepResult
from comastre.losses.points import PointSource
from comastre.stream.build import build_stream
from comastre.stream.scenario import Scenario, Task

OBJECT = "object"
"""The one class of a model that tells no classes apart."""


class TrainingMethod(Protocol):
    """The verbs of a method (`continual/methods/`)."""

    @property
    def old_model(self) -> Any: ...
    def begin(self, task: Task, previous: Any) -> Any: ...
    def losses(self, model: Any, batch: Any, points: PointSource) -> Any: ...
    def weigh(self, terms: Any) -> Tensor: ...


@dataclass(frozen=True)
class Parts:
    """Functions that the loop calls; spawned processes get them by name, so each is defined at a module's top level."""

    data: Callable[[RunConfig], tuple[SegmentationDataset, SegmentationDataset]]
    """Training and validation set."""
    scenario: Callable[[RunConfig, SegmentationDataset], Scenario]
    method: Callable[[RunConfig], TrainingMethod]
    batches: Callable[[SegmentationDataset, Task, RunConfig, int, int, int], Any]
    """(dataset, task, config, iterations done, rank, number of processes): a generator of each iteration's parts."""
    evaluate: Callable[[Any, SegmentationDataset, Scenario, int, RunConfig, torch.device, float], StepResult]
    """(model, validation set, scenario, step, config, device, seconds of training)."""
    save: Callable[[Any, Path, SegmentationDataset, Scenario, int, RunConfig, Results], None]
    """(model, folder, training set, scenario, step, config, results with this step): write the model bundle."""
    title: str | None = None
    """What a step is called on the screen; by default its number."""
    examples: Callable[[Any, Path, SegmentationDataset, Scenario, int, torch.device], None] | None = None
    """(model, run directory, validation set, scenario, step, device): keep pictures for the report."""


@dataclass(frozen=True)
class Prepared:
    """What a run needs of the user's data, made before anything is written."""

    training_set: SegmentationDataset
    validation_set: SegmentationDataset
    scenario: Scenario


def prepare(config: RunConfig, parts: Parts) -> Prepared:
    """Look at data and setting, each of which may be refused."""
    training_set, validation_set = parts.data(config)
    validation_set.presence()  # finds bad files, which otherwise would end the run only after its first step
    return Prepared(training_set, validation_set, parts.scenario(config, training_set))


def default_parts() -> Parts:
    """The real things."""
    from comastre.evaluation.model import evaluate_model
    from comastre.methods.build import build_method
    from comastre.stream.loading import training_batches

    return Parts(
        datasets,
        scenario_of,
        build_method,
        training_batches,
        evaluate_model,
        save_step,
        examples=_examples,
    )


def datasets(config: RunConfig) -> tuple[SegmentationDataset, SegmentationDataset]:
    """Training and validation set of the configured dataset."""
    from comastre.data.build import build_datasets

    return build_datasets(config.data)


def scenario_of(config: RunConfig, training_set: SegmentationDataset) -> Scenario:
    """The stream of tasks; joint training learns all classes in one step."""
    return build_stream(config, training_set.presence(), training_set.class_names)


def _examples(
    model: Any, run: Path, dataset: SegmentationDataset, scenario: Scenario, step: int, device: torch.device
) -> None:
    """Pictures for the report, of a model that recognises the classes of its stream."""
    from comastre.evaluation.examples import record_examples

    if model.num_classes == sum(len(task.new_classes) for task in scenario.tasks[: step + 1]):
        record_examples(model, run, dataset, scenario, step, device)


def save_step(
    model: Any,
    folder: Path,
    training_set: SegmentationDataset,
    scenario: Scenario,
    step: int,
    config: RunConfig,
    results: Results,
) -> None:
    """The model bundle of one step, with the lineage of all steps so far."""
    learned = [*scenario.tasks[step].old_classes, *scenario.tasks[step].new_classes]
    colours = [training_set.colours[0], *(training_set.colours[class_id] for class_id in learned)]
    names = results.class_order[: len(learned)]
    if config.method == "objectness":  # its classes were never told apart
        names, colours = (OBJECT,), colours[:2]
    today = datetime.now(UTC).date().isoformat()
    table = class_table(
        names,
        model.tasks,
        colours,
        background="background" if training_set.has_background else "void",
        lineage=[_lineage_of(results, done, today) for done in results.steps],
        training=recipe_of(config),
    )
    store.save(model, table, folder, overwrite=True)


def _lineage_of(results: Results, done: StepResult, today: str) -> LineageStep:
    scores = done.scores(results.convention)
    return LineageStep(
        step=done.step,
        date=today,
        data=f"{results.dataset} {_kind(results)}, {done.images} images",
        new_classes=done.new_classes if done.recognises else (OBJECT,),
        # None where no validation image shows any of the classes.
        scores={name: score if score is not None and math.isfinite(score) else None for name, score in scores.items()},
    )


def _kind(results: Results) -> str:
    return "stage 1 alone" if results.method == "objectness" else f"{results.setting} {results.protocol}"
