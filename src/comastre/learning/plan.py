"""From data and a model to a lesson: what is new, what to train on, what to score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from comastre.class_table import ClassTable
from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.data.hints import hints_of
from comastre.data.label_counts import some_label_counts
from comastre.data.sources import DataSource, has_own_validation, parse_source
from comastre.errors import UserError
from comastre.learning.class_names import ClassRoles, assign_roles, known_labels
from comastre.learning.continuing import Continued
from comastre.learning.images import hold_out, image_names, scoring_part, to_train_on, training_part, typical_size
from comastre.learning.lesson import Lesson
from comastre.learning.schedule import Amounts
from comastre.text import visible


@dataclass(frozen=True)
class NameChoices:
    """What the user says about names."""

    same: Mapping[str, str]
    """Name in the data -> name in the model."""
    confirmed: tuple[str, ...]
    """New although they look like another class."""
    only: tuple[str, ...]
    """The new classes to learn, if not all."""


@dataclass(frozen=True)
class OldData:
    """Data on which forgetting is measured."""

    source: DataSource
    labels: tuple[int, ...]
    """Model label of each id."""
    scored: frozenset[str]

    @property
    def title(self) -> str:
        return _title(self.source)


@dataclass(frozen=True)
class Plan:
    """A lesson with what was counted on the way."""

    lesson: Lesson
    amounts: Amounts
    total: int
    """Images of the data."""
    empty: int
    """Images that show none of the classes."""
    shown: Counter[str]
    """Images of each labelled class."""
    held_out: Counter[str]
    names: tuple[str, ...]
    """Of the images to train on."""
    old_data: OldData | None
    hints: tuple[str, ...] = ()
    """What looks wrong about the data."""


def make_plan(
    known: ClassTable | None,
    data: str | Path,
    val: str | Path | None,
    old_val: str | Path | None,
    choices: NameChoices,
    share: float,
    parent: str | None = None,
    continued: Continued | None = None,
) -> Plan:
    """Look at the data: labels of all images are read, their pixels are not; labels of some are counted.

    `known` is what the teacher knows: the model that learns, or, where a lesson is `continued`, the one before it.
    """
    source = parse_source(data)
    dataset = training_part(source)
    scoring = parse_source(val) if val is not None else source if has_own_validation(source) else None
    scored_data = scoring_part(scoring) if scoring is not None else None
    old_source = _old_source(old_val, known)
    old_dataset = scoring_part(old_source) if old_source is not None else None

    presence = dataset.presence()
    old_names = known.names if known is not None else ()
    elsewhere = [name for other in (scored_data, old_dataset) if other is not None for name in other.class_names]
    roles = assign_roles(
        old_names,
        dataset.class_names,
        frozenset().union(*presence),
        choices.same,
        choices.confirmed,
        choices.only,
        elsewhere,
        continued.classes if continued is not None else (),
    )
    _check(roles, source, presence)

    translated = [frozenset(roles.labels[label - 1] for label in classes) - {0} for classes in presence]
    taught = [label for label, name in enumerate(roles.names, start=1) if name in roles.taught]
    names = image_names(dataset)
    held_out = hold_out(names, translated, taught, share) if scoring is None else ()
    images = to_train_on(names, translated, held_out)
    labels, scored = roles.labels, roles.labelled
    if scoring is not None and scored_data is not None:
        labels, scored = _scorable(
            roles.names, scored_data, choices, "the data for scoring" if val is None else "--val"
        )
    old_data = None
    if old_source is not None and old_dataset is not None:
        old_data = OldData(old_source, *_scorable(roles.names, old_dataset, choices, "--old-val"))
        if not old_data.scored.intersection(roles.old):
            raise UserError(f"--old-val {old_val} shows none of the model's old classes: nothing can be measured on it")
    short_side, one_size = typical_size(dataset)
    empty = sum(not translated[index] for index in images)
    lesson = Lesson(
        known=known,
        background=known.background if known is not None else "background" if dataset.has_background else "void",
        roles=roles,
        title=_title(source),
        source=source,
        images=images,
        held_out=held_out,
        scoring=scoring,
        scoring_labels=labels if scoring is not None else (),
        scored=scored,
        parent=parent,
        continued=continued,
    )
    return Plan(
        lesson=lesson,
        total=len(dataset),
        empty=sum(not classes for classes in translated),
        amounts=Amounts(len(images), empty, len(roles.old), max(1, len(roles.new)), short_side, one_size),
        shown=_count(roles, translated, range(len(translated))),
        held_out=_count(roles, translated, held_out),
        names=tuple(names[index] for index in images),
        old_data=old_data,
        hints=tuple(hints_of(dataset, presence, some_label_counts(dataset))),
    )


def _old_source(old_val: str | Path | None, known: ClassTable | None) -> DataSource | None:
    if old_val is None:
        return None
    if known is None:
        raise UserError("--old-val measures what a model forgets, but a new model knows nothing yet: leave it away")
    return parse_source(old_val)


def _check(roles: ClassRoles, source: DataSource, presence: Sequence[Collection[int]]) -> None:
    labels = {roles.labels[label - 1] for classes in presence for label in classes} - {0}
    shown = [name for label, name in enumerate(roles.names, start=1) if label in labels]
    unseen = f"; no image shows {', '.join(roles.unseen)}" if roles.unseen else ""
    if not shown:
        raise UserError(f"{_title(source)} has nothing to learn: it labels nothing{unseen}")
    missing = [name for name in roles.new if name not in shown]
    if missing:
        raise UserError(
            f"{_title(source)} does not label {', '.join(missing)}, which the lesson taught: continue it with images "
            "of all its classes, or give the model without --continue to practise some of them"
        )
    if len(roles.names) >= IGNORE:
        raise UserError(f"the model would have {len(roles.names)} classes, but {IGNORE - 1} are the most it can have")


def _scorable(
    names: Sequence[str], dataset: SegmentationDataset, choices: NameChoices, what: str
) -> tuple[tuple[int, ...], frozenset[str]]:
    """Labels of the ids of data for scoring, and the classes of the model that it shows."""
    labels = known_labels(names, dataset.class_names, choices.same, choices.confirmed, what)
    shown: Collection[int] = frozenset().union(*dataset.presence())
    return labels, frozenset(names[labels[label - 1] - 1] for label in shown if labels[label - 1])


def _count(roles: ClassRoles, translated: Sequence[Collection[int]], indices: Collection[int]) -> Counter[str]:
    return Counter(roles.names[label - 1] for index in indices for label in translated[index])


def _title(source: DataSource) -> str:
    """The data's own name without the path to it."""
    place = source.file or source.root
    # It is kept in the model, where every letter must be one.
    return source.dataset if place is None else f"{visible(place.absolute().name)} ({source.dataset})"
