"""What a model knows about its classes: names, colours, which step brought which, and how it learned them."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from pydantic import Field, model_validator

from comastre.section import Section

Colour = tuple[int, int, int]


class ClassRecord(Section):
    """One class, in learning order."""

    name: str
    task: int
    """Step that brought it, 0-based."""
    colour: Colour


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


class ClassTable(Section):
    """All classes of a model, in learning order: what `classes.json` of a bundle holds."""

    background: str = "background"
    """Name of label 0: 'background' (VOC, Shapes) or 'void' (ADE20K)."""
    background_colour: Colour = (0, 0, 0)
    classes: tuple[ClassRecord, ...]
    lineage: tuple[LineageStep, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> ClassTable:
        names = [record.name for record in self.classes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or "" in names:
            raise ValueError(f"class names must be there and differ, but {twice or 'one is empty'}")
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
        steps = [record.task for record in self.classes]
        return tuple(steps.count(step) for step in range(max(steps, default=-1) + 1))


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
    colours = colours or [(0, 0, 0), *map(_distinct_colour, range(len(names)))]
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


def _distinct_colour(index: int) -> Colour:
    # Steps of the golden ratio around the colour wheel keep any number of neighbours apart.
    red, green, blue = colorsys.hsv_to_rgb((index * 0.618034) % 1.0, 0.65 + 0.3 * (index % 2), 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)
