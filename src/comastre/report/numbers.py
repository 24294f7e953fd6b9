"""The numbers behind every chart, table and sentence of a report: pure functions of the runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from comastre.config.conventions import CONVENTIONS
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import BACKGROUND, ClassErrors, Results, StepResult
from comastre.evaluation.scores import Miou
from comastre.report.groups import Entry, Group

ERROR_KINDS = ("right", "wrong_class", "below_alpha", "not_proposed")


def results_of(entry: Entry) -> Results:
    """The results of a run that is known to have some."""
    assert entry.run.results is not None
    return entry.run.results


def known(value: float | None) -> float | None:
    """The value, or None where it is nan."""
    return None if value is None or not math.isfinite(value) else value


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None where there are none."""
    numbers = [value for value in map(known, values) if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def scores(entry: Entry, convention: str) -> list[Miou]:
    """mIoU after each finished step."""
    return [step.conventions[convention] for step in results_of(entry).steps if convention in step.conventions]


def average(entry: Entry, convention: str) -> float | None:
    """`avg`: the mean of `all` over the steps."""
    return mean(score.all for score in scores(entry, convention))


def ceiling(joint: Entry, group: Group, convention: str) -> Miou:
    """What joint training reaches on the group's base classes, later classes and all."""
    rule = CONVENTIONS[convention]
    per_class = results_of(joint).steps[-1].per_class
    longest = group.longest
    base = set(results_of(longest).steps[0].new_classes if longest else per_class)
    classes = [name for name in per_class if name != BACKGROUND]
    background = per_class.get(BACKGROUND)
    old = [per_class[name] for name in classes if name in base]
    new = [per_class[name] for name in classes if name not in base]
    return Miou(
        base=_or_nan(mean([background, *old] if rule.background_in_base else old)),
        inc=mean(new),
        all=_or_nan(mean([background, *old, *new] if rule.background_in_all else [*old, *new])),
    )


# --- classes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassRow:
    """IoU of one class in every run after every step."""

    name: str
    step: int | None
    """Step that brought it; None for background."""
    ious: tuple[tuple[float | None, ...], ...]
    """`[run][step]`; None where it was not learned yet or cannot be scored."""
    forgetting: tuple[float | None, ...]
    """`[run]`, in points of IoU; None where it was learned at the last finished step, or cannot be scored."""


def class_rows(group: Group) -> list[ClassRow]:
    """All classes that some run of the group has learned, in learning order, background first."""
    longest = group.longest
    if longest is None:
        return []
    origin = {name: step.step for step in results_of(longest).steps for name in step.new_classes}
    rows = []
    for name in (BACKGROUND, *origin):
        ious = [tuple(step.per_class.get(name) for step in results_of(entry).steps) for entry in group.scored]
        lost = [results_of(entry).forgetting.get(name) for entry in group.scored]
        rows.append(ClassRow(name, origin.get(name), tuple(ious), tuple(lost)))
    return rows


def mean_forgetting(entry: Entry) -> float | None:
    """Mean over the classes of earlier steps, in points of IoU."""
    return mean(results_of(entry).forgetting.values())


@dataclass(frozen=True)
class Confusion:
    """Where the pixels of each step's classes went, in percent of their row."""

    names: tuple[str, ...]
    rows: tuple[tuple[float | None, ...], ...]
    """`[true][predicted]`; None where no pixel is true."""


def confusion(step: StepResult) -> Confusion | None:
    """Pixels by true and predicted step, background first; None where it was not recorded."""
    if not step.task_confusion:
        return None
    names = (BACKGROUND, *(f"step {number + 1}" for number in range(len(step.task_confusion) - 1)))
    rows = []
    for row in step.task_confusion:
        total = sum(row)
        rows.append(tuple(100.0 * pixels / total if total else None for pixels in row))
    return Confusion(names, tuple(rows))


@dataclass(frozen=True)
class Exchange:
    """How old and new classes take each other's pixels at the last step, in percent."""

    old_as_new: float | None
    old_as_background: float | None
    new_as_old: float | None
    new_as_background: float | None


def exchange(step: StepResult) -> Exchange | None:
    """Old: all earlier steps; new: the last one. None at the first step."""
    counts = step.task_confusion
    if len(counts) < 3:
        return None
    old, new = counts[1:-1], counts[-1]
    old_total, new_total = sum(map(sum, old)), sum(new)

    def share(pixels: int, total: int) -> float | None:
        return 100.0 * pixels / total if total else None

    return Exchange(
        share(sum(row[-1] for row in old), old_total),
        share(sum(row[0] for row in old), old_total),
        share(sum(new[1:-1]), new_total),
        share(new[0], new_total),
    )


# --- objectness or recognition ---------------------------------------------------------------------------------------


def proposing(group: Group) -> tuple[Entry, ...]:
    """The runs of the stream whose models propose masks, so that there is recall."""
    return tuple(entry for entry in group.scored if results_of(entry).steps[-1].recall is not None)


def not_proposing(group: Group) -> tuple[Entry, ...]:
    """The runs of the stream whose models label pixels at once."""
    return tuple(entry for entry in group.scored if results_of(entry).steps[-1].recall is None)


@dataclass(frozen=True)
class LaterRow:
    """Recall of a class before it is learned, by all proposals."""

    name: str
    recalls: tuple[tuple[float | None, ...], ...]
    """`[run][step]`, of steps after which something is left to learn; None once it is learned, or cannot be scored."""


def looking_ahead(group: Group) -> tuple[Entry, ...]:
    """The runs that counted proposals on classes that were not learned yet."""
    return tuple(entry for entry in proposing(group) if _steps_ahead(entry))


def later_rows(group: Group) -> list[LaterRow]:
    """All classes that a later step learns, in learning order; first all of them together."""
    entries = looking_ahead(group)
    together = tuple(tuple(_all(step.later_recall) for step in _steps_ahead(entry)) for entry in entries)
    rows = [LaterRow("all not learned yet", together)] if entries else []
    names = dict.fromkeys(name for entry in entries for name in results_of(entry).class_order)
    for name in names:
        recalls = tuple(
            tuple(_all(step.later_recall_per_class.get(name)) for step in _steps_ahead(entry)) for entry in entries
        )
        if any(value is not None for each in recalls for value in each):
            rows.append(LaterRow(name, recalls))
    return rows


def _steps_ahead(entry: Entry) -> list[StepResult]:
    return [step for step in results_of(entry).steps if step.later_recall is not None]


def _all(recall: Recall | None) -> float | None:
    return None if recall is None else known(recall.all)


def add_errors(errors: Iterable[ClassErrors]) -> dict[str, int]:
    """Counts by kind, summed over classes."""
    found = list(errors)
    return {kind: sum(getattr(each, kind) for each in found) for kind in ERROR_KINDS}


def errors_of(step: StepResult, classes: Sequence[str]) -> dict[str, int]:
    """Counts by kind over some classes after one step."""
    return add_errors(step.errors[name] for name in classes if name in step.errors)


def shares(counts: dict[str, int]) -> dict[str, float]:
    """Percent by kind; empty where there is no mask."""
    total = sum(counts.values())
    return {kind: 100.0 * number / total for kind, number in counts.items()} if total else {}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
