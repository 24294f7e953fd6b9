"""Datasets whose labels are outlines that some labelling tool wrote: every format becomes the same list of objects.

An object is what COCO's instance format has: a category and a `segmentation` of polygons or run lengths, so that one
reader draws them all and looks at every number first (`coco_json`, `outlines`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from comastre.class_table import name_problem, palette
from comastre.data.files import FileDataset, Record, files_below
from comastre.data.images import IMAGE_SUFFIXES
from comastre.data.names import refuse_unlearnable
from comastre.data.sets.annotations import Categories, Notes, file_of, packed
from comastre.data.sets.coco_json import InstanceReader
from comastre.data.sets.held_out import is_held_out
from comastre.errors import UserError
from comastre.text import brief

_UPLOAD = re.compile(r"^[0-9a-f]{8}-")
"""What Label Studio puts before the name of a file that is uploaded."""


@dataclass(frozen=True)
class DrawnImage:
    """One image and its objects."""

    file: str
    """As the tool names it; slashes between folders."""
    objects: tuple[Mapping[str, Any], ...]
    """Each with `id`, `category_id` (1..C) and `segmentation`."""


def drawn_dataset(
    name: str,
    split: str,
    root: Path,
    annotations: Path,
    class_names: Sequence[str],
    images: Sequence[DrawnImage],
    held_out: float | None = None,
) -> FileDataset:
    """The images of an annotation file; with `held_out` only those of the split."""
    names = checked_names(annotations, class_names)
    chosen = [each for each in images if held_out is None or is_held_out(each.file, held_out) == (split == "val")]
    places = ImageFinder(root)
    records = [
        Record(PurePosixPath(each.file).with_suffix("").as_posix(), places.find(each.file), annotations)
        for each in chosen
    ]
    labels = frozenset(range(1, len(names) + 1))
    categories = Categories(names, {label: label for label in labels}, labels)
    notes = Notes([packed(annotations, list(each.objects)) for each in chosen])
    reader = InstanceReader(categories, notes)
    return FileDataset(name, split, names, palette(len(names) + 1), records, reader, source=annotations)


def checked_names(file: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The names of classes 1..C, or one sentence on what is wrong with them."""
    for name in names:
        if problem := name_problem(name):
            raise UserError(f"{file}: the class {brief(name)} {problem}: give it another name.")
    refuse_unlearnable(file, names)
    return tuple(names)


class ImageFinder:
    """Where the images are that an annotation file names, however it names them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_name: dict[str, list[Path]] = {}
        for file in files_below(root, IMAGE_SUFFIXES):
            self._by_name.setdefault(file.name, []).append(file)

    def find(self, file: str) -> Path:
        """The image of that path below the root or its images/, or the only one of that name anywhere below it.

        Where there is none, the path in images/, so that the error names it.
        """
        file_of(self._root, {"file_name": file})
        usual = [self._root / "images" / file, self._root / file]
        for path in usual:
            if path.is_file():
                return path
        name = PurePosixPath(file).name
        for called in dict.fromkeys((name, _UPLOAD.sub("", name))):
            found = self._by_name.get(called, [])
            if len(found) > 1:
                raise UserError(
                    f"There are {len(found)} images called {called} below {self._root}, and {file} names one of them: "
                    "give the images different names."
                )
            if found:
                return found[0]
        return usual[0]


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """A mask (H, W) as COCO's uncompressed run lengths: zeros and ones in turn, column by column."""
    height, width = mask.shape
    values = np.concatenate(([False], mask.T.reshape(-1)))
    changes = np.flatnonzero(values[1:] != values[:-1])
    counts = np.diff(np.concatenate(([0], changes, [mask.size])))
    return {"size": [height, width], "counts": [int(count) for count in counts]}
