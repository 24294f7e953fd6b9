"""ADE20K as in the scene parsing challenge of 2016: 150 classes, 20,210 training and 2,000 validation images.

`root` is ADEChallengeData2016 or the folder that holds it. Label 0 is void: pixels of none of the 150 classes.
Training images are sorted by file name, which is what the indices of MiB's partition files count.
The masks of this challenge tell no objects apart, so no class is a thing here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from comastre.class_table import palette
from comastre.config.run import DataConfig
from comastre.data.files import FileDataset, MaskReader, Record, data_root, files_below
from comastre.errors import UserError

_NAMES = """
    wall, building, sky, floor, tree, ceiling, road, bed, window, grass, cabinet, sidewalk, person, earth, door,
    table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field,
    armchair, seat, fence, desk, rock, wardrobe, lamp, tub, rail, cushion, base, box, column, signboard, chest of
    drawers, counter, sand, sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool
    table, pillow, screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill,
    bench, countertop, stove, palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus,
    towel, light, truck, tower, chandelier, awning, street lamp, booth, tv, plane, dirt track, clothes, pole, land,
    bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy,
    washer, plaything, pool, stool, barrel, basket, falls, tent, bag, minibike, cradle, oven, ball, food, step,
    tank, trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket, sculpture, hood, sconce,
    vase, traffic light, tray, trash can, fan, pier, crt screen, plate, monitor, bulletin board, shower, radiator,
    glass, clock, flag
"""
CLASS_NAMES = tuple(" ".join(_NAMES.split()).split(", "))


def build(config: DataConfig, split: Literal["train", "val"]) -> FileDataset:
    """The split that the data section describes."""
    return ade20k(config.root, split)


def ade20k(root: str | Path | None, split: Literal["train", "val"]) -> FileDataset:
    """One split of ADE20K under `root`."""
    given = data_root(root, "ade20k")
    folder = next(
        (place for place in (given, given / "ADEChallengeData2016") if (place / "annotations").is_dir()), None
    )
    if folder is None:
        raise UserError(
            f"{given} holds no ADEChallengeData2016 with images/ and annotations/: give its folder as --data.root, or "
            f"run `comastre data prepare ade20k --root {given}`."
        )
    part = "training" if split == "train" else "validation"
    images = sorted(files_below(folder / "images" / part, (".jpg",)), key=lambda image: image.name)
    records = [Record(image.stem, image, folder / "annotations" / part / f"{image.stem}.png") for image in images]
    num_classes = len(CLASS_NAMES)
    return FileDataset(
        "ade20k",
        split,
        CLASS_NAMES,
        palette(num_classes + 1),
        records,
        MaskReader(num_classes),
        has_background=False,
        source=folder / "images" / part,
        things=(),
    )
