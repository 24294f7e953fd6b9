"""The recorded example pictures as data that a page can hold, within a budget of bytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from comastre.class_table import Colour, palette
from comastre.data.dataset import IGNORE
from comastre.data.images import open_picture
from comastre.report.gather import Example, Examples
from comastre.report.groups import Entry, Group

BUDGET = 3_000_000
"""Bytes of all pictures of a report, so that a page stays below 5 MB."""
_COLOURS = [channel for colour in (*palette(IGNORE), (255, 255, 255)) for channel in colour]


@dataclass(frozen=True)
class Card:
    """One example image: the photograph, and label maps that are transparent where nothing is labelled."""

    name: str
    classes: tuple[str, ...]
    size: tuple[int, int]
    image: str
    truth: str
    predictions: tuple[Mapping[int, str], ...]
    """`[run][step]`; a step that is missing has not been reached."""

    @property
    def bytes(self) -> int:
        return len(self.image) + len(self.truth) + sum(len(uri) for run in self.predictions for uri in run.values())


@dataclass(frozen=True)
class Gallery:
    """The examples of a group of runs."""

    cards: tuple[Card, ...]
    entries: tuple[Entry, ...]
    """The runs of `Card.predictions`."""
    labels: tuple[tuple[str, tuple[int, int, int]], ...]
    steps: int
    """Number of steps that the slider goes over."""
    remarks: tuple[str, ...]


def gallery(group: Group, budget: int = BUDGET) -> Gallery:
    """The examples that the runs of a group have in common, with sentences on what is missing."""
    with_pictures = [entry for entry in group.everybody if entry.run.examples.images]
    without = [entry.label for entry in group.everybody if not entry.run.examples.images]
    remarks = []
    if without:
        names = " and ".join(without) if len(without) < 3 else f"{', '.join(without[:-1])} and {without[-1]}"
        remarks.append(
            f"{names} {'has' if len(without) == 1 else 'have'} no example pictures: they are recorded at the end of "
            "each step, by runs of this version or newer."
        )
    if not with_pictures:
        return Gallery((), (), (), 0, tuple(remarks))
    first = with_pictures[0]
    shared = [entry for entry in with_pictures if _names(entry.run.examples) == _names(first.run.examples)]
    others = [entry.label for entry in with_pictures if entry not in shared]
    if others:
        remarks.append(f"{', '.join(others)} recorded other images than {first.label} and cannot be shown beside it.")
    cards: list[Card] = []
    spent = 0
    images = first.run.examples.images
    for number, example in enumerate(images):
        card = _card(example, [entry.run.examples.images[number] for entry in shared])
        spent += card.bytes
        if spent > budget and cards:
            remarks.append(f"{len(cards)} of {len(images)} examples are shown, to keep the page small.")
            break
        cards.append(card)
    steps = 1 + max((step for entry in shared for step in entry.run.examples.images[0].predictions), default=0)
    class_names = [name for name, _ in first.run.examples.labels]
    labels = tuple(zip(class_names, palette(len(class_names)), strict=True))
    return Gallery(tuple(cards), tuple(shared), labels, steps, tuple(remarks))


def _names(examples: Examples) -> list[str]:
    return [example.name for example in examples.images]


def _card(example: Example, of_runs: Sequence[Example]) -> Card:
    return Card(
        example.name,
        example.classes,
        example.size,
        data_uri(example.image.read_bytes(), "image/jpeg"),
        label_overlay(example.truth),
        tuple({step: label_overlay(path) for step, path in each.predictions.items()} for each in of_runs),
    )


def label_overlay(file: Path) -> str:
    """A label map that lets the photograph through where there is background, and half where truth is ignored.

    Colours are ours: some datasets have nearly black ones, which cannot be told apart over a photograph.
    """
    with open_picture(file) as picture:
        count = 1 + max(label for label, pixels in enumerate(picture.histogram()) if pixels)
        opaque = bytes(0 if label == 0 else 140 if label == IGNORE else 255 for label in range(count))
        picture.putpalette(_COLOURS[: 3 * count])
        content = io.BytesIO()
        picture.save(content, "PNG", optimize=True, transparency=opaque)
    return data_uri(content.getvalue(), "image/png")


def mask_overlay(picture: Image.Image) -> str:
    """A picture with transparency, as a page holds it."""
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return data_uri(content.getvalue(), "image/png")


def css(colour: Colour) -> str:
    """A colour as a page writes it."""
    red, green, blue = colour
    return f"#{red:02x}{green:02x}{blue:02x}"


def data_uri(content: bytes, kind: str) -> str:
    """A file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
