"""Any dataset in COCO's instance format: polygons and run-length masks in a JSON file, images in a folder.

Training and validation files are `data.train_json` and `data.val_json` (relative to `data.root`), or the first of
the usual places that exists: annotations/instances_train*.json, annotations/train.json, train.json,
train/_annotations.coco.json (and val or valid). Where there is no validation file, a fixed share of the images
(`data.held_out`) is held out. Images are looked for beside the JSON file and in the usual folders.

Objects are drawn from the largest to the smallest, so that small ones stay visible; crowds are ignored pixels, but not
masks of CVAT's export, which calls them so.
A polygon of fewer than three points has no area and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from comastre.class_table import palette
from comastre.config.run import DataConfig
from comastre.data.dataset import IGNORE
from comastre.data.files import FileDataset, Labels, Record, data_root
from comastre.data.images import image_size
from comastre.data.sets.annotations import (
    Categories,
    Notes,
    file_of,
    group_by_image,
    packed,
    read_categories,
    read_json,
)
from comastre.data.sets.held_out import is_held_out
from comastre.data.sets.outlines import BadOutline, draw
from comastre.data.sets.removal import NOTHING, Removal
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.text import brief

_FIELDS = ("id", "category_id", "segmentation", "iscrowd")
_SPLIT_NAMES = {
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "all": ("train", "val", "valid", "validation", "test"),
}


def build(config: DataConfig, split: Literal["train", "val", "all"]) -> FileDataset:
    """The split that the data section describes; all images of a file that was named are those of that file alone."""
    removal = Removal.of(config)
    if split != "all":
        return coco_json(config.root, split, config.train_json, config.val_json, config.held_out, removal)
    root = data_root(config.root, "coco_json")
    named = None if config.train_json is None else _file(root, "train", config.train_json)
    if named is not None:
        return instance_dataset("coco_json", root, "all", named, removal=removal)
    return coco_json(root, "train", held_out=0.0, removal=removal)


def has_validation(config: DataConfig) -> bool:
    """Whether there is an annotation file for validation, other than the one for training."""
    if config.root is None:
        return True  # opening it says what is missing
    root = user_path(config.root, "data.root")
    found = _file(root, "val", config.val_json)
    training = None if config.train_json is None else _file(root, "train", config.train_json)
    return found is not None and (training is None or not found.samefile(training))


def coco_json(
    root: str | Path | None,
    split: Literal["train", "val"],
    train_json: str | None = None,
    val_json: str | None = None,
    held_out: float = 0.1,
    removal: Removal = NOTHING,
) -> FileDataset:
    """One split of a dataset in COCO's instance format under `root`, without the classes of `removal`."""
    folder = data_root(root, "coco_json")
    training = _file(folder, "train", train_json)
    validation = _file(folder, "val", val_json)
    if training is None:
        raise UserError(f"No annotation file was found in {folder}: name it with --data.train_json FILE.")
    # A file that was named for training is not for validation, whatever it is called.
    if validation is not None and not validation.samefile(training):
        file = training if split == "train" else validation
        return instance_dataset("coco_json", folder, split, file, removal=removal)
    return instance_dataset("coco_json", folder, split, training, held_out=held_out, removal=removal)


def instance_dataset(
    name: str,
    root: Path,
    split: str,
    annotations: Path,
    images: Path | None = None,
    held_out: float | None = None,
    removal: Removal = NOTHING,
) -> FileDataset:
    """The images of one annotation file; with `held_out` only those of the split."""
    content = read_json(annotations, "images", "annotations", "categories")
    categories = removal.apply(read_categories(annotations, content), annotations)
    for entry in content["annotations"]:
        if isinstance(entry.get("attributes"), dict) and not entry["attributes"].get("is_crowd"):
            entry["iscrowd"] = 0  # CVAT calls every mask a crowd that is no polygon, and writes attributes, too
    grouped = group_by_image(annotations, content, _FIELDS)
    entries = [(entry["id"], file_of(annotations, entry)) for entry in content["images"]]
    if held_out is not None:
        entries = [entry for entry in entries if is_held_out(entry[1], held_out) == (split == "val")]
    entries = [entry for entry in entries if not removal.drops(grouped.get(entry[0], []), categories)]
    folder = images or _image_folder(root, annotations, [file for _, file in entries[:1]], split)
    records = [Record(Path(file).with_suffix("").as_posix(), folder / file, annotations) for _, file in entries]
    notes = Notes([packed(annotations, grouped.get(image, [])) for image, _ in entries])
    colours = palette(len(categories.class_names) + 1)
    reader = InstanceReader(categories, notes)
    title = removal.title(name)
    return FileDataset(
        title,
        split,
        categories.class_names,
        colours,
        records,
        reader,
        source=annotations,
        things=categories.things,
    )


def has_annotations(root: Path) -> bool:
    """Whether an annotation file is in one of the usual places."""
    return _file(root, "train", None) is not None


def _file(root: Path, split: Literal["train", "val"], given: str | None) -> Path | None:
    if given is not None:
        path = root / user_path(given, f"data.{split}_json")
        if not path.is_file():
            raise UserError(f"data.{split}_json: there is no file {path}.")
        return path
    for name in _SPLIT_NAMES[split]:
        usual = [*sorted((root / "annotations").glob(f"instances_{name}*.json")), root / "annotations" / f"{name}.json"]
        usual += [root / f"{name}.json", root / name / "_annotations.coco.json"]
        usual += (
            [root / "annotations" / "instances_default.json", root / "annotations.json", root / "result.json"]
            if split == "train"
            else []
        )
        found = next((path for path in usual if path.is_file()), None)
        if found is not None:
            return found
    return None


def _image_folder(root: Path, annotations: Path, files: Sequence[str], split: str) -> Path:
    stem = annotations.stem.removeprefix("instances_")
    names = (stem, *_SPLIT_NAMES[split], ".")
    places = [annotations.parent, *(root / "images" / name for name in names), *(root / name for name in names)]
    for place in places:
        if all((place / file).is_file() for file in files):
            return place
    raise UserError(
        f"The image {files[0]} of {annotations} was found neither beside it nor in images/, {split}/ or "
        f"images/{split}/ of {root}: put the images there."
    )


@dataclass(frozen=True)
class InstanceReader:
    """Draws the objects of an image from their polygons and run-length masks."""

    categories: Categories
    notes: Notes

    def __call__(self, index: int, record: Record, size: tuple[int, int] | None) -> Labels:
        height, width = size or image_size(record.image)
        semantic = np.zeros((height, width), dtype=np.uint8)
        instances = np.zeros((height, width), dtype=np.int32)
        labelled = [(self._label(entry, record), entry) for entry in self.notes[index]]
        # Objects of a class that was taken out are not drawn at all, so they hide nothing either.
        drawn = [(label, _mask(entry, height, width, record)) for label, entry in labelled if label]
        # Crowds first, so that single objects inside them count; then from the largest to the smallest.
        drawn.sort(key=lambda each: (each[0] != IGNORE, -int(each[1].sum())))
        for number, (label, mask) in enumerate(drawn, 1):
            semantic[mask] = label
            instances[mask] = 0 if label == IGNORE else number
        return Labels(semantic, instances)

    def _label(self, entry: Mapping[str, Any], record: Record) -> int:
        label = self.categories.label_of.get(entry.get("category_id", -1))
        if label is None:
            raise UserError(
                f"{record.labels}: annotation {brief(entry.get('id'))} of {record.image.name} has the category "
                f"{brief(entry.get('category_id'))}, which is not in the list of categories."
            )
        return IGNORE if entry.get("iscrowd") and label else label


def _mask(entry: Mapping[str, Any], height: int, width: int, record: Record) -> np.ndarray:
    """The pixels (H, W) bool of one annotation."""
    try:
        return draw(entry.get("segmentation"), height, width)
    except BadOutline as error:
        where = f"{record.labels}: annotation {brief(entry.get('id'))} of {record.image.name}"
        raise UserError(f"{where} {error}") from None
