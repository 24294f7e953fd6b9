"""Your own data in Pascal VOC's folders: JPEGImages and SegmentationClass, as CVAT, LabelMe and others write them.

Which class a pixel is says, the first that is there:

- labelmap.txt (or another table of `colour_table`): the colours of the masks, as CVAT's "Segmentation mask" has it;
- class_names.txt or classes.txt: masks of ids, LabelMe's `__ignore__` and `_background_` first where it names them;
- Annotations/NAME.xml with SegmentationObject/NAME.png: object i of the mask is the i-th object of the XML file.

ImageSets/Segmentation/train.txt and val.txt say which images are for what; else all images with a mask are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from comastre.class_table import Colour, palette
from comastre.config.run import DataConfig
from comastre.data.dataset import IGNORE
from comastre.data.files import FileDataset, LabelReader, Labels, MaskReader, Record, data_root, files_below, read_names
from comastre.data.images import IMAGE_SUFFIXES, read_mask
from comastre.data.sets.colour_table import BACKGROUND, find_table, read_table
from comastre.data.sets.cvat import parse_xml
from comastre.data.sets.drawn import checked_names
from comastre.data.sets.held_out import is_held_out
from comastre.errors import UserError
from comastre.paths import user_path

_IMAGES, _MASKS = ("JPEGImages", "images"), ("SegmentationClassPNG", "SegmentationClass")
_LISTS = ("class_names.txt", "classes.txt")
_LABELME = ("__ignore__", "_background_")


def build(config: DataConfig, split: Literal["train", "val", "all"]) -> FileDataset:
    """The split that the data section describes."""
    root = data_root(config.root, "voc_pairs")
    images = _folder(root, _IMAGES, "images")
    found = {file.relative_to(images).with_suffix("").as_posix(): file for file in files_below(images, IMAGE_SUFFIXES)}
    table = find_table(root)
    listed = next((root / name for name in _LISTS if (root / name).is_file()), None)
    objects = table is None and listed is None
    masks = root / "SegmentationObject" if objects else _folder(root, _MASKS, "masks")
    if objects and not (masks.is_dir() and (root / "Annotations").is_dir()):
        raise UserError(f"{root} says nowhere what its classes are called: add labelmap.txt or class_names.txt.")
    names = _chosen(root, split, config.held_out, [name for name in found if (masks / f"{name}.png").is_file()])
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"The lists of {root} name {missing[0]}, but {images} has no such image: correct the list.")
    records = [Record(name, found[name], masks / f"{name}.png") for name in names]
    reader: LabelReader
    colours: tuple[Colour, ...] = ()
    if table is not None:
        known = read_table(table)
        classes, background, colours = known.names, known.has_background, known.colours
        reader = MaskReader(len(classes), known)
    elif listed is not None:
        classes, background, names_zero = _listed(listed)
        reader = MaskReader(len(classes), read_mask, names_zero)
    else:
        every = sorted({name for file in sorted((root / "Annotations").glob("*.xml")) for name in _objects(file)})
        classes, background = checked_names(root / "Annotations", every), True
        reader = ObjectReader(root / "Annotations", classes)
    return FileDataset(
        "voc_pairs", split, classes, colours or palette(len(classes) + 1), records, reader, background, source=root
    )


def has_validation(config: DataConfig) -> bool:
    """Whether a list says which images are for validation."""
    if config.root is None:
        return True  # opening it says what is missing
    lists = user_path(config.root, "data.root") / "ImageSets" / "Segmentation"
    return (lists / "train.txt").is_file() and (lists / "val.txt").is_file()


@dataclass(frozen=True)
class ObjectReader:
    """Reads a mask of object numbers and the names of the objects."""

    annotations: Path
    class_names: tuple[str, ...]

    def __call__(self, index: int, record: Record, size: tuple[int, int] | None) -> Labels:
        names = _objects(self.annotations / f"{record.name}.xml")
        lookup = np.zeros(256, dtype=np.uint8)
        lookup[IGNORE] = IGNORE
        for number, name in enumerate(names, start=1):
            lookup[number] = self.class_names.index(name) + 1
        objects = MaskReader(len(names))(index, record, size).semantic
        return Labels(lookup[objects], np.where(objects == IGNORE, 0, objects).astype(np.int32))


def _objects(file: Path) -> list[str]:
    """Names of the objects of an image, in order."""
    names = [(each.findtext("name") or "").strip() for each in parse_xml(file).iterfind("object")]
    if len(names) >= IGNORE:
        raise UserError(f"{file} has {len(names)} objects, more than a mask can number.")
    return names


def _listed(file: Path) -> tuple[tuple[str, ...], bool, bool]:
    """Classes 1..C of a list, whether label 0 is a background, and whether the list says so."""
    every = read_names(file)
    names = [name for name in every if name.lower() not in _LABELME]
    background, names_zero = True, any(name.lower() == _LABELME[1] for name in every)
    if names and names[0].lower() in BACKGROUND:
        background, names_zero, names = names[0].lower() == "background", True, names[1:]
    return checked_names(file, names), background, names_zero


def _folder(root: Path, names: tuple[str, ...], what: str) -> Path:
    found = next((root / name for name in names if (root / name).is_dir()), None)
    if found is None:
        raise UserError(f"{root} has no folder {' and no '.join(names)} with the {what}: add it.")
    return found


def _chosen(root: Path, split: str, held_out: float, masked: list[str]) -> list[str]:
    lists = root / "ImageSets" / "Segmentation"
    if (lists / "train.txt").is_file() and (lists / "val.txt").is_file():
        return read_names(lists / ("val.txt" if split == "val" else "train.txt"))
    return [name for name in masked if split == "all" or is_held_out(name, held_out) == (split == "val")]
