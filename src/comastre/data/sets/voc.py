"""Pascal VOC 2012 for segmentation, with the SBD augmentation where it is there.

`root` is VOC2012, VOCdevkit, or the folder that holds VOCdevkit. Whatever lists and masks exist are used:

- training images: ImageSets/Segmentation/train_aug.txt (or trainaug.txt); else, with SBD beside VOC, VOC's train and
  SBD's train and val without VOC's val (10,582 images); else train.txt.
- validation images: ImageSets/Segmentation/val.txt (1,449 images).
- the mask of a training image: SegmentationClassAug, else SegmentationClass, else SBD's cls/*.mat. Of a validation
  image: SegmentationClass first, which is what VOC evaluates against.
- object numbers: SegmentationObject, else SegmentationObjectAug (which `comastre data prepare` makes from SBD), else
  SBD's inst/*.mat; kept only where every image of the split has them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from comastre.class_table import Colour
from comastre.config.run import DataConfig
from comastre.data.files import FileDataset, MaskReader, Record, data_root, first_existing, read_names
from comastre.data.images import read_mask
from comastre.data.sets.sbd import find_sbd, read_sbd, sbd_names
from comastre.errors import UserError

_NAMES = """
    aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse, motorbike, person,
    pottedplant, sheep, sofa, train, tvmonitor
"""
CLASS_NAMES = tuple(" ".join(_NAMES.split()).split(", "))


def build(config: DataConfig, split: Literal["train", "val"]) -> FileDataset:
    """The split that the data section describes."""
    return voc(config.root, split)


def voc(root: str | Path | None, split: Literal["train", "val"]) -> FileDataset:
    """One split of VOC 2012 under `root`."""
    given = data_root(root, "voc")
    folder = find_voc(given)
    sbd = find_sbd(given, folder, folder.parent, folder.parent.parent)
    names = _training_names(folder, sbd) if split == "train" else read_names(_lists(folder) / "val.txt")
    records = [_record(folder, sbd, name, split) for name in names]
    if any(record.objects is None for record in records):
        records = [replace(record, objects=None) for record in records]
    reader = MaskReader(len(CLASS_NAMES), read_png_or_sbd)
    return FileDataset("voc", split, CLASS_NAMES, voc_colours(21), records, reader, source=folder)


def find_voc(root: Path) -> Path:
    """The folder VOC2012 in, or at, `root`."""
    for folder in (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"):
        if (folder / "JPEGImages").is_dir():
            return folder
    raise UserError(
        f"{root} holds no VOCdevkit/VOC2012/JPEGImages: give the folder of VOC 2012 as --data.root, or run "
        f"`comastre data prepare voc --root {root}`."
    )


def train_aug_names(folder: Path, sbd: Path) -> list[str]:
    """VOC train and SBD train and val, without VOC val, each once and sorted: 10,582 images."""
    val = set(read_names(_lists(folder) / "val.txt"))
    return sorted((set(read_names(_lists(folder) / "train.txt")) | set(sbd_names(sbd))) - val)


def _lists(folder: Path) -> Path:
    return folder / "ImageSets" / "Segmentation"


def _training_names(folder: Path, sbd: Path | None) -> list[str]:
    ready = first_existing(_lists(folder) / "train_aug.txt", _lists(folder) / "trainaug.txt")
    if ready is not None:
        # The widely copied list has "/JPEGImages/name.jpg /SegmentationClassAug/name.png" in its lines.
        return [Path(line.split()[0]).stem for line in read_names(ready)]
    return train_aug_names(folder, sbd) if sbd is not None else read_names(_lists(folder) / "train.txt")


def _record(folder: Path, sbd: Path | None, name: str, split: str) -> Record:
    image = folder / "JPEGImages" / f"{name}.jpg"
    if sbd is not None and not image.exists():
        image = first_existing(sbd / "img" / f"{name}.jpg") or image
    kinds = ("SegmentationClassAug", "SegmentationClass")
    masks = [folder / kind / f"{name}.png" for kind in (kinds if split == "train" else kinds[::-1])]
    objects = [folder / kind / f"{name}.png" for kind in ("SegmentationObject", "SegmentationObjectAug")]
    if sbd is not None:
        masks.append(sbd / "cls" / f"{name}.mat")
        objects.append(sbd / "inst" / f"{name}.mat")
    # Where there is none, the place where it was to be expected is named.
    mask = first_existing(*masks) or next((each for each in masks if each.parent.is_dir()), masks[0])
    return Record(name, image, mask, first_existing(*objects))


def read_png_or_sbd(path: Path) -> np.ndarray:
    """The values of a PNG, or of one of SBD's MATLAB files."""
    return read_sbd(path) if path.suffix == ".mat" else read_mask(path)


def voc_colours(num: int) -> tuple[Colour, ...]:
    """VOC's own colours: bits 0, 1 and 2 of the id are the highest of red, green and blue, bits 3 to 5 the next."""
    return tuple((_channel(label, 0), _channel(label, 1), _channel(label, 2)) for label in range(num))


def _channel(label: int, channel: int) -> int:
    return sum((label >> (3 * place + channel) & 1) << (7 - place) for place in range(3))
