"""What a model knows about its classes: names, colours, which step brought which, and how it learned them."""

from __future__ import annotations

import colorsys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from comastre.section import Section

Channel = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Channel, Channel, Channel]
"""Red, green and blue, 0..255."""
LONGEST_NAME = 200
"""Characters of a class's name: more fit into no table and no figure."""


def name_problem(name: str) -> str:
    """What is wrong with the name of a class, such as 'is empty'; nothing where it is good.

    Control characters would reach the terminal, where they are commands; half a character can't be written to a file.
    """
    if not name.strip():
        return "is empty"
    if len(name) > LONGEST_NAME:
        return f"has {len(name):,} characters, more than {LONGEST_NAME}"
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name):
        return "holds a control character"
    return ""


class ClassRecord(Section):
    """One class, in learning order."""

    name: str
    task: Annotated[int, Field(ge=0)]
    """Step that brought it, 0-based."""
    colour: Colour
    thing: bool | None = None
    """Whether it has objects (a car) or is stuff (the sky); None where nobody said."""


class LineageStep(Section):
    """How the model came to be: one learning step."""

    step: int
    date: str
    """ISO date."""
    data: str
    """What it was taught with, such as 'shapes 6-2 overlapped, 965 images'."""
    new_classes: tuple[str, ...]
    scores: dict[str, float | None] = Field(default_factory=dict)
    """Percentages after the step, such as {'all': 61.2}."""
    status: Literal["passed", "nothing learned", "refused"] = "passed"
    """What the gate of `learn` said."""
    parent: str | None = None
    """sha256 of the model that the step began with, as `bundle.history.digest` gives it."""
    note: str = ""
    """How much of the old classes was kept, in a few words."""


class ClassTable(Section):
    """All classes of a model, in learning order: what `classes.json` of a bundle holds."""

    background: str = "background"
    """Name of label 0: 'background' (VOC, Shapes) or 'void' (ADE20K)."""
    background_colour: Colour = (0, 0, 0)
    classes: tuple[ClassRecord, ...]
    lineage: tuple[LineageStep, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> ClassTable:
        for name in (self.background, *self.names):
            if problem := name_problem(name):
                raise ValueError(f"the class name {name[:40]!r} {problem}: give it another one")
        twice = [name for name, times in Counter(self.names).items() if times > 1]
        if twice:
            raise ValueError(f"class names must differ, but {twice[0]} is there twice")
        return self

    @model_validator(mode="after")
    def _check_steps(self) -> ClassTable:
        known = 0
        for record in self.classes:
            if record.task not in (known, known - 1):
                raise ValueError(
                    f"the class {record.name} is of task {record.task}, but classes stand in learning order, those of "
                    "task 0 first, and every task has some"
                )
            known = record.task + 1
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Class names in learning order, without background."""
        return tuple(record.name for record in self.classes)

    @property
    def colours(self) -> tuple[Colour, ...]:
        """Colours of labels 0..C, background first."""
        return (self.background_colour, *(record.colour for record in self.classes))

    @property
    def tasks(self) -> tuple[int, ...]:
        """Number of classes of each task."""
        return tuple(Counter(record.task for record in self.classes).values())


def class_table(
    names: Sequence[str],
    tasks: Sequence[int],
    colours: Sequence[Colour] | None = None,
    background: str = "background",
    lineage: Sequence[LineageStep] = (),
) -> ClassTable:
    """The table of `names` in learning order, `tasks[t]` of them brought by step t; `colours` has background first."""
    if len(names) != sum(tasks):
        raise ValueError(f"{len(names)} class names for tasks of {tuple(tasks)} classes")
    colours = colours or palette(len(names) + 1)
    steps = [step for step, size in enumerate(tasks) for _ in range(size)]
    records = [
        ClassRecord(name=name, task=step, colour=colour)
        for name, step, colour in zip(names, steps, colours[1 : len(names) + 1], strict=True)
    ]
    return ClassTable(
        background=background,
        background_colour=colours[0],
        classes=tuple(records),
        lineage=tuple(lineage),
    )


def palette(num: int) -> tuple[Colour, ...]:
    """`num` distinct colours, the first black for background; a longer palette starts with the shorter one."""
    golden_ratio = 0.618033988749895
    colours: list[Colour] = [(0, 0, 0)]
    for index in range(num - 1):
        # Hues a golden angle apart never come close early on; saturation and value tell later rounds apart.
        hue = (0.02 + index * golden_ratio) % 1.0
        saturation = (0.75, 0.5, 0.95)[index // 12 % 3]
        value = (0.95, 0.65, 0.8)[index // 36 % 3]
        red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
        colours.append((round(red * 255), round(green * 255), round(blue * 255)))
    return tuple(colours[:num])
