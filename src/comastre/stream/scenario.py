"""From a setting, a protocol and a class-presence table to the tasks of a stream.

The rules: docs/specification.md, Settings and protocols.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from comastre.data.dataset import IGNORE
from comastre.errors import UserError

PROTOCOLS = ("overlapped", "disjoint", "sequential")


@dataclass(frozen=True)
class Task:
    """One step of the stream: what is new, which images come, and how their labels are seen."""

    step: int
    """0-based."""
    new_classes: tuple[int, ...]
    """Dataset ids in learning order."""
    old_classes: tuple[int, ...]
    """Dataset ids of all earlier steps, in learning order."""
    future_classes: tuple[int, ...]
    """Dataset ids of all later steps, in learning order."""
    images: tuple[int, ...]
    """Indices into the training set."""
    labelled_old_classes: tuple[int, ...] = ()
    """Of the old classes, those that the images label, too: all in the sequential protocol, else none."""

    @property
    def labelled_old(self) -> tuple[int, ...]:
        """Places of the labelled old classes in learning order."""
        return tuple(place for place, label in enumerate(self.old_classes) if label in self.labelled_old_classes)

    def training_lookup(self) -> np.ndarray:
        """(256,) from dataset id to model label: 0 background, k + 1 for class k, hidden classes 0, 255 ignored."""
        num_old = len(self.old_classes)
        lookup = _lookup(self.new_classes, self.future_classes + self.old_classes, first_label=num_old + 1)
        for place in self.labelled_old:
            lookup[self.old_classes[place]] = place + 1
        return lookup


@dataclass(frozen=True)
class Scenario:
    """A whole stream of tasks, and how it was made."""

    setting: str
    protocol: str
    tradition: str
    """'protocol': images chosen by the protocol's rule; 'partition': a fixed list of images per step."""
    class_order: tuple[int, ...]
    """Dataset ids in learning order: model class k is dataset class class_order[k]."""
    tasks: tuple[Task, ...]

    def evaluation_lookup(self, step: int) -> np.ndarray:
        """(256,) from dataset id to model label after `step`: classes not learned yet are 0, 255 is ignored."""
        learned = self.tasks[step].old_classes + self.tasks[step].new_classes
        return _lookup(learned, self.tasks[step].future_classes, first_label=1)


def build_scenario(
    presence: Sequence[Collection[int]],
    num_classes: int,
    setting: str,
    protocol: str,
    class_order: Sequence[int] | None = None,
    partition: Sequence[Sequence[int]] | None = None,
    class_names: Sequence[str] = (),
) -> Scenario:
    """The tasks of `setting` over images whose classes are `presence`; `partition` fixes the images of each step.

    `class_names` are for messages.
    """
    if protocol not in PROTOCOLS:
        raise UserError(f"protocol '{protocol}' is unknown: use one of {', '.join(PROTOCOLS)}.")
    if not 1 <= num_classes < IGNORE:
        raise UserError(f"A dataset needs 1 to {IGNORE - 1} classes, not {num_classes}.")
    order = _checked_order(class_order, num_classes)
    groups = _class_groups(order, setting)
    if partition is not None:
        _check_partition(partition, len(groups), len(presence), setting)

    tasks = []
    first = 0
    for step, new in enumerate(groups):
        old, future = order[:first], order[first + len(new) :]
        images = partition[step] if partition is not None else _images_of_step(presence, new, future, protocol)
        labelled = old if protocol == "sequential" else ()
        task = Task(step, new, old, future, tuple(int(image) for image in images), labelled)
        if not task.images:
            raise UserError(
                f"Step {step} of setting {setting} ({protocol}) has no training image with {_named(new, class_names)}: "
                "add images, change the class order, or use another setting."
            )
        tasks.append(task)
        first += len(new)
    tradition = "protocol" if partition is None else "partition"
    return Scenario(setting, protocol, tradition, order, tuple(tasks))


def split_classes(num_classes: int, setting: str) -> tuple[int, ...]:
    """How many classes each step of `setting` brings: '15-1' on 20 classes is (15, 1, 1, 1, 1, 1)."""
    if setting == "joint":
        return (num_classes,)
    match = re.fullmatch(r"(\d+)-(\d+)", setting)
    if match is None:
        raise UserError(
            f"setting '{setting}' is not understood: write B-I, such as 15-1 (15 base classes, then 1 each), or joint."
        )
    base, increment = int(match[1]), int(match[2])
    remaining = num_classes - base
    on = f"{setting} on {num_classes} classes"
    if base < 1 or increment < 1:
        raise UserError(f"{on}: every step needs at least 1 class.")
    if remaining < 0:
        raise UserError(f"{on}: {base} base classes are more than there are.")
    if remaining == 0:
        raise UserError(f"{on}: no class remains after the {base} base classes; use the setting joint.")
    if remaining % increment:
        raise UserError(f"{on}: {remaining} remaining classes can't be split into steps of {increment}.")
    return (base,) + (increment,) * (remaining // increment)


def _class_groups(order: tuple[int, ...], setting: str) -> list[tuple[int, ...]]:
    groups = []
    first = 0
    for size in split_classes(len(order), setting):
        groups.append(order[first : first + size])
        first += size
    return groups


def _checked_order(class_order: Sequence[int] | None, num_classes: int) -> tuple[int, ...]:
    if class_order is None:
        return tuple(range(1, num_classes + 1))
    order = tuple(int(label) for label in class_order)
    known = set(range(1, num_classes + 1))
    if sorted(order) != sorted(known):
        problems = {
            "missing": known - set(order),
            "unknown": set(order) - known,
            "twice": {label for label in order if order.count(label) > 1},
        }
        found = "; ".join(f"{name}: {_numbers(labels)}" for name, labels in problems.items() if labels)
        raise UserError(f"class_order must hold each class 1..{num_classes} once ({found}).")
    return order


def _images_of_step(
    presence: Sequence[Collection[int]], new: Sequence[int], future: Sequence[int], protocol: str
) -> list[int]:
    """Images with a new class; without any future class unless the protocol is overlapped."""
    wanted = frozenset(new)
    unwanted = frozenset() if protocol == "overlapped" else frozenset(future)
    return [
        index
        for index, classes in enumerate(presence)
        if not wanted.isdisjoint(classes) and unwanted.isdisjoint(classes)
    ]


def _check_partition(partition: Sequence[Sequence[int]], num_steps: int, num_images: int, setting: str) -> None:
    if len(partition) != num_steps:
        raise UserError(f"The partition has {len(partition)} parts but setting {setting} has {num_steps} steps.")
    taken: dict[int, int] = {}
    for step, part in enumerate(partition):
        for index in (int(image) for image in part):
            if not 0 <= index < num_images:
                raise UserError(
                    f"Part {step} of the partition holds image {index} but the training set has images "
                    f"0..{num_images - 1}: is it the partition of another dataset?"
                )
            if index in taken:
                raise UserError(
                    f"Image {index} is in part {taken[index]} and in part {step} of the partition: "
                    "every image belongs to one step only."
                )
            taken[index] = step


def _lookup(learned: Sequence[int], hidden: Sequence[int], first_label: int) -> np.ndarray:
    lookup = np.full(256, IGNORE, dtype=np.int64)  # an id that the dataset does not name says nothing
    lookup[[0, *hidden]] = 0
    lookup[list(learned)] = np.arange(first_label, first_label + len(learned))
    return lookup


def _numbers(labels: Iterable[int]) -> str:
    return ", ".join(str(label) for label in sorted(labels))


def _named(classes: Sequence[int], names: Sequence[str]) -> str:
    shown = [f"{label} ({names[label - 1]})" if names else str(label) for label in classes]
    return f"class {shown[0]}" if len(shown) == 1 else f"any of the classes {', '.join(shown)}"
