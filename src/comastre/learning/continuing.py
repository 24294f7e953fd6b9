"""Lessons that go on: more time or images for the last lesson, and more images of classes that a model knows.

Both are ordinary lessons with another beginning or end, whatever the method is: a continued one begins with the
weights that the last one ended with, taught by the model before it; one that teaches nothing new practises with the
model itself as its teacher, beside a class that no image shows and that is dropped at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from comastre.bundle import history, store
from comastre.bundle.difference import PREVIOUS
from comastre.class_table import LineageStep
from comastre.errors import UserError
from comastre.methods.class_statistics import KeptStatistics
from comastre.methods.protocol import Method
from comastre.stream.scenario import Task

NOTHING_NEW = "nothing new"
"""Name of the class beside which known ones are practised."""


@dataclass(frozen=True)
class Continued:
    """A lesson that goes on."""

    classes: tuple[str, ...]
    """What it teaches."""
    folder: Path
    """The model that it ended with."""
    lineage: tuple[LineageStep, ...]
    """How that came to be."""
    begins: bool = True
    """Whether the student begins with its weights; after one look at the images there are none to go on with."""


def find_lesson(taught: Path, parent: Path | None = None) -> tuple[Path, Continued]:
    """The teacher of the last lesson of `taught`, the model before it, and that lesson.

    A lesson may have been continued before, and known classes practised in between: the teacher is the first model on
    the way back that does not know the classes yet. `parent` is where the model before `taught` is.
    """
    classes = store.load(taught).classes
    last = len(classes.tasks) - 1
    teacher, named = taught, parent
    while len(store.load(teacher).classes.tasks) > last:
        if last == 0:
            raise UserError(f"{taught} has learned one step only, from nothing: give it as MODEL, not as --continue")
        teacher, named = _before(teacher, named), None
    lesson = tuple(record.name for record in classes.classes if record.task == last)
    return teacher, Continued(lesson, taught, classes.lineage)


def _before(taught: Path, named: Path | None) -> Path:
    """The folder of the model before `taught`; where it is not found but can be restored, the refusal says how."""
    history.parents_digest(taught)
    try:
        return history.parent_of(taught, named)
    except UserError as error:
        if named is not None or not (taught / PREVIOUS).is_file():
            raise
        raise UserError(f"{error}, which `comastre undo {taught} --out FOLDER` makes") from None


def beginning_with(method: Method, taught: Path) -> Method:
    """The method with models that begin a step with the weights of the bundle `taught`."""
    plain = method.begin

    def begin(task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> nn.Module:
        model = plain(task, previous, init)
        try:
            model.load_state_dict(store.load(taught).model.state_dict())
        except RuntimeError:
            raise UserError(
                f"the lesson of {taught} cannot be continued: its method gives a model another shape when a lesson "
                "ends; teach the model before it again, for longer"
            ) from None
        return model

    return _with(method, begin=begin)


def dropping_last_task(method: Method) -> Method:
    """The method with models that lose the step's own classes when it ends."""
    plain = method.after_training

    def after_training(task: Task, model: nn.Module) -> nn.Module:
        trained: Any = plain(task, model)
        smaller = method.build(trained.tasks[:-1])
        state = trained.state_dict()
        smaller.load_state_dict({name: state[name] for name in smaller.state_dict()})
        kept = getattr(trained, "statistics", None)
        if isinstance(kept, KeptStatistics):
            smaller.statistics = kept.first(sum(trained.tasks[:-1]))  # type: ignore[assignment]
        return smaller.to(next(trained.parameters()).device).eval()

    return _with(method, after_training=after_training)


def _with(method: Method, **verbs: Any) -> Method:
    """The method with other verbs; all the rest is its own, whatever a later version adds."""
    for name, verb in verbs.items():
        setattr(method, name, verb)
    return method
