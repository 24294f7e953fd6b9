"""Data by one word on the command line: `shapes`, `voc:FOLDER`, a folder of images and masks, or a COCO JSON file.

A source is NAME:FOLDER with the name of an installed dataset, the name alone of one that needs no folder, or a path: a
folder with classes.txt, classes.json or a table of colours is a `folder`, one with data.yaml is `yolo`, one with VOC's
folders and a list of classes is `voc_pairs`, one with an annotation file in a usual place is `coco_json` or `cvat`. A
file *.json is that annotation file alone, of COCO, Label Studio or Datumaro, as its beginning says; *.xml is CVAT's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from comastre.class_table import Colour
from comastre.config.datasets import datasets, find_dataset, installed, near_dataset
from comastre.config.run import DataConfig
from comastre.data.dataset import Sample, SegmentationDataset
from comastre.documents import Unreadable, require_regular
from comastre.errors import UserError
from comastre.paths import user_path

Split = Literal["train", "val", "all"]
_BEGINNING = 100_000
"""Characters by which an annotation file's format is told."""
_ANNOTATED = ("coco_json", "label_studio", "cvat")
"""Datasets of which an annotation file may be named."""
_YOLO_FILES = ("data.yaml", "data.yml")


@dataclass(frozen=True)
class DataSource:
    """Which dataset, and where."""

    dataset: str
    """As in `data.dataset`."""
    root: Path | None = None
    file: Path | None = None
    """The annotation file of coco_json, where one was named."""

    def __str__(self) -> str:
        if self.file is not None:
            return str(self.file)
        return self.dataset if self.root is None else f"{self.dataset}:{self.root}"

    @property
    def name(self) -> str:
        """What people call it: the last part of its path."""
        place = self.file or self.root
        return self.dataset if place is None else place.absolute().name

    def settings(self) -> dict[str, Any]:
        """What the section `data` of a configuration says about it."""
        given = {"dataset": self.dataset, "root": self.root, "train_json": self.file and self.file.absolute()}
        return {name: str(value) for name, value in given.items() if value is not None}


def parse_source(text: str | Path) -> DataSource:
    """The source that a word of the command line names; nothing but the folder's own listing is read."""
    kind, colon, place = str(text).partition(":")
    spec = find_dataset(kind) if kind in (*datasets(), *installed().problems) else None
    if spec is not None and not spec.needs_root and not colon:
        return DataSource(kind)
    if spec is not None and spec.needs_root and colon:
        if not place:
            raise UserError(f"{text} names no folder: write {kind}:FOLDER")
        path = user_path(place, "the data")
        if kind in _ANNOTATED and path.suffix.lower() in (".json", ".xml"):
            return replace(_annotation_file(path), dataset=kind)
        return DataSource(kind, path)
    path = user_path(text, "the data")
    if path.suffix.lower() in (".json", ".xml") and not path.is_dir():
        return _annotation_file(path)
    if path.name in _YOLO_FILES and path.is_file():
        return DataSource("yolo", path.absolute().parent)
    if path.is_dir():
        return _folder_source(path)
    if spec is not None:
        needs = "needs the folder that holds it" if spec.needs_root else "needs no folder"
        raise UserError(f"{kind} {needs}: write {spec.place}")
    near = near_dataset(kind) if colon else None
    if near is not None:
        raise UserError(f"there is no dataset {kind}: did you mean {near}:{place}?")
    public = [spec.place for spec in datasets().values() if spec.has_validation is None]
    raise UserError(
        f"there is no data {text}: give a folder with images/, masks/ and classes.txt, a .json or .xml of a labelling "
        f"tool, "
        f"{', '.join(public[:-1])} or {public[-1]}"
    )


def open_split(source: DataSource, split: Split, require_files: bool = True) -> SegmentationDataset:
    """The training or validation images, or both; a share is held out where the data has no validation split.

    All images of an annotation file that was named are those of that file alone. With `require_files` a missing file is
    refused at once.
    """
    from comastre.data.build import build_dataset, build_datasets
    from comastre.data.files import FileDataset

    config = DataConfig.model_validate(source.settings())
    if split != "all" or (source.file is None and has_own_validation(source)):
        training, validation = build_datasets(config, require_files)
        return {"train": training, "val": validation}.get(split) or Joined((training, validation))
    whole = build_dataset(config, "all")
    if require_files and isinstance(whole, FileDataset):
        whole.require_files()
    return whole


def has_own_validation(source: DataSource) -> bool:
    """Whether the data comes with a validation split, so that none has to be held out."""
    return find_dataset(source.dataset).validates(DataConfig.model_validate(source.settings()))


def split_for_scoring(source: DataSource) -> Split:
    """Which images to score on: those of a named annotation file, else the validation split, else all."""
    return "val" if source.file is None and has_own_validation(source) else "all"


class Joined:
    """Several splits of one dataset as one."""

    def __init__(self, parts: Sequence[SegmentationDataset]) -> None:
        self.parts = tuple(parts)
        self.name: str = parts[0].name
        self.class_names: tuple[str, ...] = parts[0].class_names
        self.colours: tuple[Colour, ...] = parts[0].colours
        self.has_background: bool = parts[0].has_background
        self.things: frozenset[int] = parts[0].things

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: int) -> Sample:
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(f"image {index + len(self)} of {len(self)}")

    def presence(self) -> list[frozenset[int]]:
        return [classes for part in self.parts for classes in part.presence()]


def _annotation_file(path: Path) -> DataSource:
    if not path.is_file():
        raise UserError(f"there is no annotation file {path}: check the name")
    return DataSource(_format_of(path), _root_of(path), path)


def _format_of(file: Path) -> str:
    """Which tool's annotations a file holds, by its name and its beginning."""
    if file.suffix.lower() == ".xml":
        return "cvat"
    try:
        require_regular(file)
        with file.open(encoding="utf-8-sig", errors="replace") as content:
            start = content.read(_BEGINNING).lstrip()
    except (OSError, Unreadable):
        return "coco_json"  # opening it says what is wrong
    if start.startswith("["):
        return "label_studio"
    # Datumaro's categories are an object by kind, COCO's a list.
    return "cvat" if re.search(r'"categories"\s*:\s*\{', start) else "coco_json"


def _root_of(file: Path) -> Path:
    """Where images are looked for: beside the file, or beside the folder annotations/ that holds it."""
    parent = file.absolute().parent
    return parent.parent if parent.name == "annotations" else parent


def _folder_source(path: Path) -> DataSource:
    from comastre.data.sets.coco_json import has_annotations
    from comastre.data.sets.colour_table import find_table
    from comastre.data.sets.cvat import find_export
    from comastre.data.sets.yolo import find_description

    listed = any((path / name).exists() for name in ("classes.txt", "classes.json", "class_names.txt"))
    if (path / "JPEGImages").is_dir() and (listed or find_table(path) is not None):
        return DataSource("voc_pairs", path)
    described = find_description(path)
    if described is not None and not (listed and described.name in _YOLO_FILES):
        return DataSource("yolo", path)
    if listed or (find_table(path) is not None and any((path / name).is_dir() for name in ("masks", "train/masks"))):
        return DataSource("folder", path)
    if has_annotations(path):
        return DataSource("coco_json", path)
    if find_export(path) is not None:
        return DataSource("cvat", path)
    for name, spec in datasets().items():
        if path.name in spec.signs or any((path / sign).is_dir() for sign in spec.signs):
            raise UserError(f"{path} looks like {name}: write {name}:{path}")
    images = any((path / name).is_dir() for name in ("images", "train/images"))
    fix = (
        "add classes.txt with one class name per line, id 1 first"
        if images
        else "it needs images/, masks/ and classes.txt, or a COCO JSON file such as annotations/train.json"
    )
    raise UserError(f"{path} is no dataset yet: {fix}")
