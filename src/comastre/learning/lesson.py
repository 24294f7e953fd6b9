"""What the training loop needs to teach a model the new classes of the user's data.

To the loop a lesson is a stream of two steps whose first is done: what the model knows. A new model has one step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from comastre.bundle import store
from comastre.bundle.store import Bundle
from comastre.class_table import ClassRecord, ClassTable, Colour, LineageStep, palette
from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset
from comastre.data.relabel import relabel
from comastre.data.sources import DataSource
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import Results, StepResult
from comastre.evaluation.scores import Miou
from comastre.learning.class_names import ClassRoles
from comastre.learning.continuing import NOTHING_NEW, Continued, beginning_with, dropping_last_task
from comastre.learning.images import scoring_part, training_part
from comastre.methods.protocol import Method
from comastre.stream.loading import training_batches
from comastre.stream.scenario import Scenario, Task
from comastre.training.parts import LearnedStep, Parts, describe, evaluate_step, method_of

CONVENTION = "no_background"
"""Of the ways to average, the only one that makes sense where old classes are not labelled."""


@dataclass(frozen=True)
class Lesson:
    """Which images teach which classes to which model; small, because every process gets a copy."""

    known: ClassTable | None
    """What the model knows; None for a new model."""
    background: str
    """What label 0 is called."""
    roles: ClassRoles
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
    parent: str | None = None
    """sha256 of the model that it starts from."""
    continued: Continued | None = None
    """The lesson that goes on, if one does."""

    @property
    def practises(self) -> bool:
        """Whether it teaches nothing new, only more of what the model knows."""
        return not self.roles.new

    @property
    def stream_names(self) -> tuple[str, ...]:
        """Names of the classes of the stream, in learning order."""
        return (*self.roles.names, NOTHING_NEW) if self.practises else self.roles.names

    @property
    def colours(self) -> tuple[Colour, ...]:
        """Of labels 0..C: the known ones stay, the new ones get colours that no known class has."""
        taken = self.known.colours if self.known is not None else ((0, 0, 0),)
        free = [colour for colour in palette(256) if colour not in taken]
        return (*taken, *free[: len(self.stream_names) + 1 - len(taken)])

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
        return Parts(
            self.data, self.scenario_of, self.method_of, training_batches, self.evaluate, self.save, title="learning"
        )

    def method_of(self, config: RunConfig) -> Method:
        """The configured method; where nothing new is taught or a lesson is continued, with another end or begin."""
        method = method_of(config)
        if self.continued is not None and self.continued.begins:
            return beginning_with(method, self.continued.folder)
        return dropping_last_task(method) if self.practises else method

    def data(self, config: RunConfig) -> tuple[SegmentationDataset, SegmentationDataset]:
        """Training and scoring images, labelled as the grown model labels them."""
        source = training_part(self.source)
        training = self.relabelled(source, self.roles.labels)
        if self.scoring is None:
            return training, self.relabelled(source, self.roles.labels, self.held_out)
        return training, self.relabelled(scoring_part(self.scoring), self.scoring_labels)

    def relabelled(
        self, dataset: SegmentationDataset, labels: Sequence[int], indices: Sequence[int] | None = None
    ) -> SegmentationDataset:
        return relabel(dataset, labels, self.stream_names, self.colours, indices)

    def scenario_of(self, config: RunConfig, training_set: SegmentationDataset) -> Scenario:
        return self.scenario(config.continual.setting)

    def scenario(self, setting: str) -> Scenario:
        """Ids are model labels already: class k has the id k + 1."""
        order = tuple(range(1, len(self.stream_names) + 1))
        old, new = order[: len(self.roles.old)], order[len(self.roles.old) :]
        labelled = tuple(label for label, name in enumerate(self.roles.old, start=1) if name in self.roles.labelled_old)
        task = Task(self.step, new, old, (), self.images, labelled)
        tasks = (task,) if self.known is None else (Task(0, old, (), new, ()), task)
        return Scenario(setting, "overlapped", "protocol", order, tasks)

    def evaluate(self, learned: LearnedStep) -> StepResult:
        """Scores of the classes that the data labels; others can't be told from background there."""
        if len(learned.prepared.validation_set) == 0:
            nothing = self.unscored(learned.prepared.scenario, learned.task.step)
            return replace(nothing, seconds=learned.seconds)
        return keep_scores(evaluate_step(learned), self.scored, self.roles)

    def unscored(self, scenario: Scenario, step: int) -> StepResult:
        """A step of which nothing is measured."""
        task = scenario.tasks[step]
        names = [self.stream_names[label - 1] for label in (*task.old_classes, *task.new_classes)]
        result = StepResult(
            step=step,
            new_classes=tuple(names[len(task.old_classes) :]),
            images=len(task.images),
            conventions={},
            per_class=dict.fromkeys(["background", *names]),
            recall=Recall(math.nan, math.nan),
        )
        return keep_scores(result, frozenset(), self.roles)

    def save(self, learned: LearnedStep, folder: Path, results: Results) -> None:
        """The bundle of the grown model, whose lineage is the old one's and this step; or the old one's copy again."""
        old = self.known if learned.task.step < self.step else None
        table = old or self.table(results.steps[learned.task.step])
        store.save(Bundle(learned.model, table, describe(learned.config)), folder, overwrite=True)

    def table(self, result: StepResult) -> ClassTable:
        """The class table after the lesson."""
        step = max(0, len(self.old_tasks) - 1) if self.practises else len(self.old_tasks)
        known = self.known
        fresh = self.colours[len(self.roles.old) + 1 : len(self.roles.names) + 1]
        records = [
            ClassRecord(name=name, task=step, colour=colour) for name, colour in zip(self.roles.new, fresh, strict=True)
        ]
        labelled = [name for name in self.roles.names if name in self.roles.labelled]
        lineage = LineageStep(
            step=step,
            date=datetime.now(UTC).date().isoformat(),
            data=f"{self.title}, {len(self.images)} images labelled for {', '.join(labelled)}{self._kind}",
            new_classes=self.roles.new,
            scores={name: result.per_class.get(name) for name in labelled},
            parent=self.parent,
        )
        return ClassTable(
            background=self.background,
            background_colour=self.colours[0],
            classes=(*(known.classes if known is not None else ()), *records),
            lineage=(*self._earlier, lineage),
        )

    @property
    def _kind(self) -> str:
        """What a reader of the lineage must know."""
        return "; the lesson before, continued" if self.continued is not None else ""

    @property
    def _earlier(self) -> tuple[LineageStep, ...]:
        if self.continued is not None:
            return self.continued.lineage
        return self.known.lineage if self.known is not None else ()


def keep_scores(result: StepResult, scored: Collection[str], roles: ClassRoles) -> StepResult:
    """The result with scores of the classes `scored` only."""
    per_class = {name: value if name in scored else None for name, value in result.per_class.items()}
    known = [name for name in roles.old if name in per_class]
    new = [name for name in roles.new if name in per_class]
    if not roles.old:  # a new model: all of its classes are its base
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
