"""`comastre eval`: a bundle's scores on any data whose classes are, or can be mapped to, the model's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console
from torch import Tensor, device

from comastre.class_table import ClassTable
from comastre.config.conventions import PAPER
from comastre.config.view import ViewConfig
from comastre.data.class_mapping import ClassMap, ClassMapping, map_classes
from comastre.data.relabel import relabel
from comastre.data.sources import DataSource, Split, open_split, split_for_scoring
from comastre.documents import json_bytes
from comastre.errors import UserError
from comastre.evaluation.evaluate import EvaluationPlan, evaluate
from comastre.evaluation.image_progress import ImageProgress
from comastre.evaluation.model import EvaluatedModel
from comastre.evaluation.results import BACKGROUND, StepResult, without_nan
from comastre.files import write_whole
from comastre.segmentation import Segmentation, Size
from comastre.stream.scenario import Scenario, Task

VERSION = 1


class LoadedModel(Protocol):
    """A model with its classes, such as `comastre.load` gives."""

    @property
    def segmenter(self) -> EvaluatedModel: ...
    @property
    def classes(self) -> ClassTable: ...
    @property
    def view(self) -> ViewConfig: ...
    @property
    def device(self) -> device: ...


@dataclass(frozen=True)
class Options:
    """How data is read and counted."""

    split: Split | None = None
    """None: those of a named annotation file, else the validation split, else all images."""
    masks: Literal["semantic", "instance"] = "semantic"
    """What recall counts: one true mask per class of an image, or one per object."""
    batch_size: int = 1
    workers: int = 0
    short_side: int | str | Sequence[int] | None = None
    """The size at which the model sees the images, as in `view.short_side`; by default that of its bundle."""
    max_side: int | None = None


@dataclass(frozen=True)
class Scores:
    """What a model scored on data."""

    result: StepResult
    mapping: ClassMapping
    tasks: tuple[tuple[str, ...], ...]
    """The model's classes, step by step."""
    data: str
    split: str
    images: int
    background: str
    """What label 0 of the data is."""
    view: ViewConfig
    """The size at which the model saw the images."""

    def as_json(self) -> dict[str, Any]:
        """The document of --out: percentages, null where nothing can be scored."""
        result, mapping = self.result, self.mapping
        document = {
            "version": VERSION,
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "view": self.view.model_dump(mode="json"),
            "tasks": [list(names) for names in self.tasks],
            "convention": PAPER,
            "miou": asdict(result.conventions[PAPER]),
            "conventions": {name: asdict(score) for name, score in result.conventions.items()},
            **result.measures(),
            "map": dict(mapping.same),
            "not_in_the_data": list(mapping.missing),
            "not_known_to_the_model": list(mapping.unknown),
            "ignored": list(mapping.left_out),
            "seconds": result.seconds,
        }
        return without_nan(document)

    def write(self, path: Path) -> None:
        """Write the document, whole."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json_bytes(self.as_json()))
        except OSError as error:
            raise UserError(f"the scores cannot be written to {path}: {error}") from error


def score(
    model: LoadedModel,
    source: DataSource,
    class_map: ClassMap | None = None,
    options: Options | None = None,
    console: Console | None = None,
) -> Scores:
    """Score a model on data; classes go together by name, or as `class_map` (data class -> model class) says."""
    options = options or Options()
    if options.batch_size < 1 or options.workers < 0:
        raise UserError("--batch-size must be 1 or more, and --workers 0 or more")
    view = model.view.changed(options.short_side, options.max_side)
    split = options.split or split_for_scoring(source)
    dataset = open_split(source, split)
    mapping = map_classes(dataset.class_names, model.classes, class_map)
    names = (*model.classes.names, "not known to the model")
    scored = relabel(dataset, mapping.labels, names, (*model.classes.colours, (128, 128, 128)))
    scenario = _as_learned(model.classes.tasks, bool(mapping.unknown))
    plan = EvaluationPlan(
        scored,
        scenario,
        len(model.classes.tasks) - 1,
        options.batch_size,
        options.masks,
        options.workers,
        mapping.unscored(model.classes.names),
        view,
    )
    began = time.perf_counter()
    with ImageProgress("scoring", len(dataset) * len(view.sides), console) as progress:

        def segment(
            images: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size]
        ) -> Sequence[Segmentation]:
            found = model.segmenter.segment(images, padding, sizes, original_sizes)
            progress.advance(len(found))
            return found

        model.segmenter.eval()
        result = evaluate(segment, plan, model.device)
        # All classes that the model does not know are one here, so that their masks are of no class.
        result = replace(result, later_recall=None, later_recall_per_class={})
    tasks = tuple(
        tuple(record.name for record in model.classes.classes if record.task == step)
        for step in range(len(model.classes.tasks))
    )
    return Scores(
        replace(result, seconds=time.perf_counter() - began),
        mapping,
        tasks,
        str(source),
        split,
        len(dataset),
        BACKGROUND if dataset.has_background else "void",
        view,
    )


def _as_learned(sizes: Sequence[int], unknown: bool) -> Scenario:
    """A stream in which the model has learned all its steps, and a step is to come where the data has more classes."""
    total = sum(sizes) + unknown
    order = tuple(range(1, total + 1))
    tasks, first = [], 0
    for step, size in enumerate((*sizes, 1) if unknown else sizes):
        tasks.append(Task(step, order[first : first + size], order[:first], order[first + size :], ()))
        first += size
    return Scenario("as the model learned", "overlapped", "protocol", order, tuple(tasks))
