"""COCO 2017: 118,287 training and 5,000 validation images.

`root` holds train2017/, val2017/ (or images/train2017/ ...) and annotations/. Labels are the panoptic PNGs
(133 classes, things and stuff; unlabelled pixels are void) or the instance JSON (80 classes, the rest is background):
`data.coco_labels`, by default panoptic where annotations/panoptic_train2017.json is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from comastre.class_table import palette
from comastre.config.run import DataConfig
from comastre.data.dataset import IGNORE
from comastre.data.files import FileDataset, Labels, Record, data_root
from comastre.data.images import open_mask
from comastre.data.sets.annotations import Categories, Notes, file_of, id_of, packed, read_categories, read_json
from comastre.data.sets.coco_json import instance_dataset
from comastre.data.sets.removal import NOTHING, Removal
from comastre.errors import UserError


def build(config: DataConfig, split: Literal["train", "val"]) -> FileDataset:
    """The split that the data section describes."""
    return coco(config.root, split, config.coco_labels, Removal.of(config))


def coco(
    root: str | Path | None,
    split: Literal["train", "val"],
    labels: Literal["auto", "panoptic", "instances"] = "auto",
    removal: Removal = NOTHING,
) -> FileDataset:
    """One split of COCO 2017 under `root`, without the classes of `removal`."""
    given = data_root(root, "coco")
    folder = next((place for place in (given, given / "coco") if (place / "annotations").is_dir()), None)
    if folder is None:
        raise UserError(
            f"{given} holds no annotations/ of COCO 2017: give the folder as --data.root, or run "
            f"`comastre data prepare coco --root {given}`."
        )
    year = f"{split}2017"
    images = next((place for place in (folder / year, folder / "images" / year) if place.is_dir()), folder / year)
    panoptic = folder / "annotations" / f"panoptic_{year}.json"
    if labels == "panoptic" or (labels == "auto" and panoptic.exists()):
        return _panoptic(panoptic, images, split, removal)
    instances = folder / "annotations" / f"instances_{year}.json"
    return instance_dataset("coco", folder, split, instances, images, removal=removal)


def _panoptic(annotations: Path, images: Path, split: str, removal: Removal) -> FileDataset:
    content = read_json(annotations, "images", "annotations", "categories")
    categories = removal.apply(read_categories(annotations, content), annotations)
    files = {id_of(annotations, entry, "id", "an image"): file_of(annotations, entry) for entry in content["images"]}
    masks = annotations.with_suffix("")
    records, notes = [], []
    for entry in content["annotations"]:
        mask = file_of(annotations, entry)
        image = id_of(annotations, entry, "image_id", mask)
        if image not in files:
            raise UserError(f"{annotations}: {mask} belongs to an image that is not listed.")
        info = entry.get("segments_info")
        if not isinstance(info, list) or not all(isinstance(each, dict) for each in info):
            raise UserError(f"{annotations}: the segments_info of {mask} must be a list of objects.")
        segments = [
            [
                id_of(annotations, each, "id", f"a segment of {mask}"),
                id_of(annotations, each, "category_id", f"a segment of {mask}"),
                bool(each.get("iscrowd")),
            ]
            for each in info
        ]
        if removal.drops(info, categories):
            continue
        records.append(Record(Path(files[image]).stem, images / files[image], masks / mask))
        notes.append(packed(annotations, segments))
    return FileDataset(
        removal.title("coco"),
        split,
        categories.class_names,
        palette(len(categories.class_names) + 1),
        records,
        PanopticReader(categories, Notes(notes)),
        has_background=False,
        source=annotations,
        things=categories.things,
    )


@dataclass(frozen=True)
class PanopticReader:
    """Reads a panoptic PNG, whose colours are segment numbers, with the list of its segments."""

    categories: Categories
    notes: Notes

    def __call__(self, index: int, record: Record, size: tuple[int, int] | None) -> Labels:
        numbers = _read_numbers(record.labels)
        if size is not None and numbers.shape != size:
            raise UserError(
                f"The mask {record.labels} is {numbers.shape[1]} x {numbers.shape[0]} but its image "
                f"{record.image.name} is {size[1]} x {size[0]}: make them the same size."
            )
        present, places = np.unique(numbers, return_inverse=True)
        labels = np.zeros(len(present), dtype=np.uint8)
        objects = np.zeros(len(present), dtype=np.int32)
        segments = {number: (category, crowd) for number, category, crowd in self.notes[index]}
        for place, number in enumerate(present.tolist()):
            if number == 0:
                continue  # void
            category, crowd = segments.get(number, (None, 0))
            label = self.categories.label_of.get(category)
            if label is None:
                raise UserError(
                    f"The mask {record.labels} holds the segment {number}, whose category is not in the JSON file: "
                    "are mask and JSON of the same version?"
                )
            labels[place] = IGNORE if crowd and label else label
            objects[place] = place + 1 if label in self.categories.things and not crowd else 0
        places = places.reshape(numbers.shape)
        return Labels(labels[places], objects[places])


def _read_numbers(path: Path) -> np.ndarray:
    """The segment numbers (H, W): red + 256 green + 256^2 blue."""
    if not path.exists():
        raise UserError(f"The mask {path} does not exist: unpack the panoptic masks beside the JSON file.")
    with open_mask(path) as opened:
        if opened.mode != "RGB":
            raise UserError(f"The mask {path} has mode {opened.mode} but a panoptic mask is RGB: replace it.")
        pixels = np.asarray(opened).astype(np.int32)
    return pixels[..., 0] + 256 * pixels[..., 1] + 65536 * pixels[..., 2]
