"""What the training loop needs to teach a model the new classes of the user's data.

To the loop a lesson is a stream of two steps whose first is done: what the model knows. A new model has one step.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from comastre.bundle import store
from comastre.class_table import ClassRecord, ClassTable, Colour, LineageStep
from comastre.config.recipe import recipe_of
from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset, palette
from comastre.data.relabel import relabel
from comastre.data.sources import DataSource
from comastre.errors import UserError
from comastre.evaluation.model import evaluate_model
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import Results, StepResult
from comastre.evaluation.scores import Miou
from comastre.learning.class_names import Meaning
from comastre.learning.images import scoring_part, training_part
from comastre.losses.points import PointSource
from comastre.methods.build import build_method
from comastre.methods.comastre.method import TwoStageMethod
from comastre.methods.comastre.objective import Terms
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.stream.loading import Batch, training_batches
from comastre.stream.scenario import Scenario, Task
from comastre.training.parts import Parts

CONVENTION = "no_background"
"""Of the ways to average, the only one that makes sense where old classes are not labelled."""
_MEASURED = "measured"
_LONG_ENOUGH = 5.0  # seconds to measure the speed in


@dataclass(frozen=True)
class Lesson:
    """Which images teach which classes to which model; small, because every process gets a copy."""

    known: ClassTable | None
    """What the model knows; None for a new model."""
    background: str
    """What label 0 is called."""
    meaning: Meaning
    title: str
    """The data in a few words, for the lineage; no path, because bundles are shared."""
    source: DataSource
    images: tuple[int, ...]
    """Of the training part, those to train on."""
    held_out: tuple[int, ...]
    """Of the training part, those to score on, where no other data is given for it."""
    scoring: DataSource | None
    scoring_labels: tuple[int, ...]
    """Model label of each id of the data for scoring."""
    scored: frozenset[str]
    """Classes that the data for scoring labels."""

    @property
    def colours(self) -> tuple[Colour, ...]:
        """Of labels 0..C: the known ones stay, the new ones get colours that nobody has."""
        taken = self.known.colours if self.known is not None else ((0, 0, 0),)
        free = [colour for colour in palette(256) if colour not in taken]
        return (*taken, *free[: len(self.meaning.new)])

    @property
    def old_tasks(self) -> tuple[int, ...]:
        return self.known.tasks if self.known is not None else ()

    @property
    def step(self) -> int:
        """The loop's number of the step that learns."""
        return 0 if self.known is None else 1

    # --- what the loop calls -----------------------------------------------------------------------------------------

    def parts(self) -> Parts:
        """The functions of the loop."""
        title = "learning"
        return Parts(self.data, self.scenario_of, self.method, training_batches, self.evaluate, self.save, title)

    def timed_parts(self) -> Parts:
        """The same, but the loop is left after a few iterations."""
        return replace(self.parts(), batches=timed_batches, title="timing")

    def data(self, config: RunConfig) -> tuple[SegmentationDataset, SegmentationDataset]:
        """Training and scoring images, labelled as the grown model labels them."""
        source = training_part(self.source)
        training = self.relabelled(source, self.meaning.labels)
        if self.scoring is None:
            return training, self.relabelled(source, self.meaning.labels, self.held_out)
        return training, self.relabelled(scoring_part(self.scoring), self.scoring_labels)

    def relabelled(
        self, dataset: SegmentationDataset, labels: Sequence[int], indices: Sequence[int] | None = None
    ) -> SegmentationDataset:
        return relabel(dataset, labels, self.meaning.names, self.colours, indices)

    def scenario_of(self, config: RunConfig, training_set: SegmentationDataset) -> Scenario:
        return self.scenario(config.continual.setting)

    def scenario(self, setting: str) -> Scenario:
        """Ids are model labels already: class k has the id k + 1."""
        order = tuple(range(1, len(self.meaning.names) + 1))
        old, new = order[: len(self.meaning.old)], order[len(self.meaning.old) :]
        # Labels of old classes stay: those that are not annotated do not occur in the data.
        task = Task(self.step, new, old, (), self.images, old_labelled=True)
        tasks = (task,) if self.known is None else (Task(0, old, (), new, ()), task)
        return Scenario(setting, "overlapped", "protocol", order, tasks)

    def method(self, config: RunConfig) -> GrowingMethod:
        annotated = [k for k, name in enumerate(self.meaning.old) if name in self.meaning.annotated]
        method = build_method(config)
        return GrowingMethod(TwoStageMethod(method.name, config, method.loss, tuple(annotated)), self.old_tasks)

    def evaluate(
        self,
        model: Segmenter,
        dataset: SegmentationDataset,
        scenario: Scenario,
        step: int,
        config: RunConfig,
        device: torch.device | str,
        seconds: float,
    ) -> StepResult:
        """Scores of the classes that the data labels; others can't be told from background there."""
        if len(dataset) == 0:
            return self.unscored(scenario, step, seconds)
        result = evaluate_model(model, dataset, scenario, step, config, device, seconds)
        return keep_scores(result, self.scored, self.meaning)

    def unscored(self, scenario: Scenario, step: int, seconds: float = 0.0) -> StepResult:
        """A step of which nothing is measured."""
        task = scenario.tasks[step]
        names = [self.meaning.names[label - 1] for label in (*task.old_classes, *task.new_classes)]
        result = StepResult(
            step=step,
            new_classes=tuple(names[len(task.old_classes) :]),
            images=len(task.images),
            conventions={},
            per_class=dict.fromkeys(["background", *names]),
            recall=Recall(math.nan, math.nan),
            seconds=seconds,
        )
        return keep_scores(result, frozenset(), self.meaning)

    def save(
        self,
        model: Segmenter,
        folder: Path,
        training_set: SegmentationDataset,
        scenario: Scenario,
        step: int,
        config: RunConfig,
        results: Results,
    ) -> None:
        """The bundle of the grown model; its lineage is the old one's and this step."""
        store.save(model, self.table(config, results.steps[step]), folder, overwrite=True)

    def table(self, config: RunConfig, result: StepResult) -> ClassTable:
        """The class table after the lesson."""
        step = len(self.old_tasks)
        known = self.known
        records = [
            ClassRecord(name=name, task=step, colour=colour)
            for name, colour in zip(self.meaning.new, self.colours[len(self.meaning.old) + 1 :], strict=True)
        ]
        labelled = [name for name in self.meaning.names if name in self.meaning.labelled]
        lineage = LineageStep(
            step=step,
            date=datetime.now(UTC).date().isoformat(),
            data=f"{self.title}, {len(self.images)} images labelled for {', '.join(labelled)}",
            new_classes=self.meaning.new,
            scores={name: result.per_class.get(name) for name in labelled},
        )
        return ClassTable(
            background=self.background,
            background_colour=self.colours[0],
            classes=(*(known.classes if known is not None else ()), *records),
            lineage=(*(known.lineage if known is not None else ()), lineage),
            training=recipe_of(config),
        )


class GrowingMethod:
    """CoMasTRe, whose first step is a model that exists already."""

    def __init__(self, method: TwoStageMethod, old_tasks: tuple[int, ...]) -> None:
        self.inner = method
        self.old_tasks = old_tasks

    @property
    def old_model(self) -> Segmenter | None:
        return self.inner.old_model

    def begin(self, task: Task, previous: Segmenter | None) -> Segmenter:
        """The known model's structure (its numbers come from the checkpoint), then the grown one."""
        if previous is None and self.old_tasks:
            return build_segmenter(self.inner.config.model, self.old_tasks)
        return self.inner.begin(task, previous)

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> Terms:
        return self.inner.losses(model, batch, points)

    def weigh(self, terms: Terms) -> Tensor:
        return self.inner.weigh(terms)


def keep_scores(result: StepResult, scored: Collection[str], meaning: Meaning) -> StepResult:
    """The result with scores of the classes `scored` only."""
    per_class = {name: value if name in scored else None for name, value in result.per_class.items()}
    known = [name for name in meaning.old if name in per_class]
    new = [name for name in meaning.new if name in per_class]
    if not meaning.old:  # a new model: all of its classes are its base
        known, new = new, []
    miou = Miou(
        base=mean_score(per_class, known),
        inc=mean_score(per_class, new) if result.step > 0 else None,
        all=mean_score(per_class, [*known, *new]),
    )
    return replace(result, per_class=per_class, conventions={CONVENTION: miou})


def mean_score(per_class: Mapping[str, float | None], names: Sequence[str]) -> float:
    """Mean over the classes that have a score, nan where none has."""
    values = [value for name in names if (value := per_class.get(name)) is not None]
    return sum(values) / len(values) if values else math.nan


# --- how fast is this machine ----------------------------------------------------------------------------------------


class Measured(UserError):  # noqa: N818 (it is how the loop is left, also from another process)
    """The loop was left after a few iterations."""


def timed_batches(
    dataset: SegmentationDataset, task: Task, config: RunConfig, start: int, rank: int, world_size: int
) -> Iterator[tuple[Batch, ...]]:
    """Batches that end a run after a few iterations, with the time that one takes."""
    times: list[float] = []
    with closing(training_batches(dataset, task, config, start, rank, world_size)) as batches:  # type: ignore[type-var]
        while len(times) < 3 or (len(times) < 10 and times[-1] - times[0] < _LONG_ENOUGH):
            times.append(time.perf_counter())
            yield next(batches)
    times.append(time.perf_counter())
    # The first iteration is slower: memory, kernels and loader processes come into being.
    raise Measured(_MEASURED, statistics.median(after - before for before, after in pairwise(times[1:])))


def measured_seconds(error: UserError) -> float | None:
    """The seconds per iteration that `TimedBatches` measured; None for any other error."""
    return float(error.args[1]) if len(error.args) == 2 and error.args[0] == _MEASURED else None
