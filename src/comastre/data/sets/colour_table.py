"""Masks whose colours stand for classes, and the tables that say which: CVAT's labelmap.txt or CamVid's class_dict.csv.

labelmap.txt has lines `name:r,g,b:parts:actions`, class_dict.csv lines `name,r,g,b` below a heading; colours.json is
{"name": [r, g, b], ...}. A name such as background or void is label 0, whatever its colour; where there is none, black.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from comastre import documents
from comastre.class_table import Colour
from comastre.data.dataset import IGNORE
from comastre.data.images import open_mask
from comastre.data.sets.drawn import checked_names
from comastre.documents import Unreadable, text_of
from comastre.errors import UserError
from comastre.text import brief

FILES = ("labelmap.txt", "class_dict.csv", "colours.json")
BACKGROUND = ("background", "void", "unlabeled", "unlabelled")
IGNORED = ("ignore", "ignored")


@dataclass(frozen=True)
class ColourTable:
    """Which colour is which class."""

    file: Path
    names: tuple[str, ...]
    """Of classes 1..C."""
    has_background: bool
    """Whether label 0 is a background, not void."""
    codes: tuple[int, ...]
    """Colours as whole numbers, in order."""
    labels: tuple[int, ...]
    """Label of each of them."""
    colours: tuple[Colour, ...]
    """Of labels 0..C."""

    def __call__(self, file: Path) -> np.ndarray:
        """The labels (H, W) uint8 of a mask in colours; one channel of ids is taken as it is."""
        with open_mask(file) as opened:
            if opened.mode in ("L", "1"):
                return np.array(opened).astype(np.uint8, copy=False)
            pixels = np.array(opened.convert("RGB")).astype(np.int64)  # (H, W, 3)
        packed = (pixels[..., 0] << 16) | (pixels[..., 1] << 8) | pixels[..., 2]
        codes = np.array(self.codes)
        place = np.searchsorted(codes, packed).clip(max=len(codes) - 1)
        unknown = codes[place] != packed
        if unknown.any():
            code = int(packed[unknown][0])
            colour = f"{code >> 16},{code >> 8 & 255},{code & 255}"
            raise UserError(
                f"The mask {file} holds the colour {colour} on {int(unknown.sum()):,} pixels, which {self.file.name} "
                "does not name: add it there, or correct the mask (JPEG and smooth resizing make such colours)."
            )
        return np.array(self.labels, dtype=np.uint8)[place]


def find_table(root: Path) -> Path | None:
    """The table of colours of a folder, where it has one."""
    return next((root / name for name in FILES if (root / name).is_file()), None)


def read_table(file: Path) -> ColourTable:
    """The table in a file."""
    try:
        pairs = {"labelmap.txt": _labelmap, "class_dict.csv": _csv}.get(file.name, _json)(file)
    except (OSError, Unreadable) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    names, colours, label_of = [], [], {}
    background: tuple[str, Colour] | None = None
    for name, colour in pairs:
        code = (colour[0] << 16) | (colour[1] << 8) | colour[2]
        if code in label_of:
            raise UserError(f"{file}: {name} has the colour of another class: give every class its own.")
        if name.lower() in IGNORED:
            label_of[code] = IGNORE
        elif name.lower() in BACKGROUND and background is None:
            background = (name.lower(), colour)
            label_of[code] = 0
        else:
            names.append(name)
            colours.append(colour)
            label_of[code] = len(names)
    label_of.setdefault(0, 0)  # black, where no class has it
    codes = sorted(label_of)
    return ColourTable(
        file,
        checked_names(file, names),
        background is None or background[0] == "background",
        tuple(codes),
        tuple(label_of[code] for code in codes),
        (background[1] if background is not None else (0, 0, 0), *colours),
    )


def _colour(file: Path, name: str, parts: Sequence[object]) -> Colour:
    try:
        red, green, blue = (int(str(part)) for part in parts)
    except ValueError:
        red = green = blue = -1
    if not all(0 <= each <= 255 for each in (red, green, blue)):
        raise UserError(f"{file}: the colour of {brief(name)} must be three whole numbers from 0 to 255.")
    return red, green, blue


def _labelmap(file: Path) -> list[tuple[str, Colour]]:
    pairs = []
    for line in text_of(file).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, *rest = line.split(":")
        pairs.append((name.strip(), _colour(file, name, rest[0].split(",") if rest else ())))
    return pairs


def _csv(file: Path) -> list[tuple[str, Colour]]:
    rows = [row for row in csv.reader(text_of(file).splitlines()) if row]
    if rows and not rows[0][-1].strip().isdigit():
        rows = rows[1:]  # the heading
    return [(row[0].strip(), _colour(file, row[0], [part.strip() for part in row[1:]])) for row in rows]


def _json(file: Path) -> list[tuple[str, Colour]]:
    content = documents.read_json(file)
    if not isinstance(content, dict) or not all(isinstance(value, list) for value in content.values()):
        raise UserError(f'{file} must be {{"name": [r, g, b], ...}}.')
    return [(str(name).strip(), _colour(file, name, value)) for name, value in content.items()]
