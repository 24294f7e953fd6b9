"""The tables of `add_a_class.py`, from its cells alone: it prints them, and docs/benchmark_tables.py writes them.

A cell is what one lesson gave, under `ROW | CLASS | IMAGES | SEED`; `base | CLASS | SEED` is the model before it, and
`machine` is what all of them were trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

CLASSES = ("pottedplant", "sheep", "sofa", "train", "tvmonitor")
IMAGES = 40
"""Of most lessons."""
BASE, MACHINE = "base", "machine"
ROWS = (
    "learn",
    "learn --instant",
    "learn --no-instant",
    "learn --guarantee exact",
    "learn --guarantee exact, 10 own queries",
    "fine-tuning",
    "fine-tuning, classifier rebuilt",
    "fine-tuning, 100 old images",
    "fine-tuning, 300 old images",
    "joint",
)
"""In the order of the tables."""


class Key(NamedTuple):
    """Which lesson a cell is of."""

    row: str
    name: str
    images: int
    seed: int

    def __str__(self) -> str:
        return " | ".join(map(str, self))


def read_cells(files: Iterable[Path]) -> dict[str, Any]:
    """What is known, of all files together."""
    known: dict[str, Any] = {}
    for file in files:
        known |= json.loads(file.read_text(encoding="utf-8"))
    return known


def _lessons(known: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    found = {}
    for text, cell in known.items():
        row, *rest = text.split(" | ")
        if row not in (BASE, MACHINE):
            name, images, seed = rest
            found[Key(row, name, int(images), int(seed))] = cell
    return found


def _lines(lessons: Mapping[Key, Any]) -> list[tuple[str, dict[Key, Any]]]:
    """The lines of a table, those with fewer images after the others."""
    lines = []
    for fewer in (False, True):
        for row in ROWS:
            counts = sorted({key.images for key in lessons if key.row == row and (key.images != IMAGES) == fewer})
            for images in counts:
                title = f"{row}, {images} images" if fewer else row
                its = {key: cell for key, cell in lessons.items() if (key.row, key.images) == (row, images)}
                lines.append((title, its))
    return lines


def _spread(cells: Mapping[Key, Any], what: str) -> str:
    """The mean over lessons, and how far the means of the seeds are apart, where every seed has the same lessons."""
    seeds = sorted({key.seed for key in cells})
    values = [mean(cell[what] for key, cell in cells.items() if key.seed == seed) for seed in seeds]
    alike = len({sum(key.seed == seed for key in cells) for seed in seeds}) == 1
    text = f"{mean(cell[what] for cell in cells.values()):.1f}"
    return f"{text} ± {stdev(values):.1f}" if len(seeds) > 1 and alike else text


def lessons_table(known: Mapping[str, Any]) -> str:
    """Means over classes and seeds, the lesson that kept least, and what the gate of `learn` said."""
    before = [cell["old"] for text, cell in known.items() if text.startswith(f"{BASE} | ")]
    table = [
        "| training | lessons | new class IoU | old classes mIoU | kept | worst lesson | refused by the gate |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    if before:
        table.append(f"| the model before | | – | {mean(before):.1f} | 100 % | | |")
    for title, cells in _lines(_lessons(known)):
        kept = [cell["kept"] for cell in cells.values()]
        judged = [cell["refused"] for cell in cells.values() if cell.get("refused") is not None]
        table.append(
            f"| {title} | {len(cells)} | {_spread(cells, 'new')} | {_spread(cells, 'old')} | {mean(kept):.1f} % "
            f"| {min(kept):.1f} % | {f'{sum(judged)} of {len(judged)}' if judged else '–'} |"
        )
    return "\n".join(table) + "\n"


def classes_table(known: Mapping[str, Any]) -> str:
    """Each lesson: IoU of the new class / what is kept of the old ones, means over seeds."""
    table = [f"| training | {' | '.join(CLASSES)} |", f"|---|{'---:|' * len(CLASSES)}"]
    for title, cells in _lines(_lessons(known)):
        texts = []
        for name in CLASSES:
            its = [cell for key, cell in cells.items() if key.name == name]
            new, kept = (mean([cell[what] for cell in its] or [0.0]) for what in ("new", "kept"))
            texts.append(f"{new:.1f} / {kept:.0f} %" if its else "")
        table.append(f"| {title} | {' | '.join(texts)} |")
    return "\n".join(table) + "\n"


def facts(known: Mapping[str, Any]) -> str:
    """How long the lessons took, on what, and which model `learn` handed over."""
    lessons = _lessons(known)
    hours = sum(cell["seconds"] for cell in lessons.values()) / 3600
    chosen = [cell["chosen"] for key, cell in lessons.items() if key.row == "learn"]
    changes = [cell["largest_change"] for cell in lessons.values() if cell.get("largest_change") is not None]
    sentences = [f"{len(lessons)} lessons, {hours:.1f} hours of processor time."]
    if chosen:
        trained = f"{chosen.count('trained')} of {len(chosen)}"
        sentences.append(f"`learn` handed over the trained model in {trained} lessons, else the instant one.")
    if changes:
        sentences.append(f"Largest change of any old score under the guarantee, in all lessons: {max(changes):g}.")
    if MACHINE in known:
        sentences.append("; ".join(f"{name} {value}" for name, value in known[MACHINE].items()) + ".")
    return " ".join(sentences) + "\n"


PARTS = {"lessons": lessons_table, "classes": classes_table, "facts": facts}
