"""Shapes: a built-in dataset of rendered objects, for demos and tests without a download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from comastre.class_table import Colour, palette
from comastre.config.run import DataConfig
from comastre.data.dataset import Sample
from comastre.data.sets.shapes_drawing import OTHER_OUTLINES, OUTLINES, Outline, Placed, background, coverage, paint
from comastre.errors import UserError

MAX_OBJECTS = 6
SMALLEST, LARGEST = 64, 128


class Shapes:
    """Images of ten shapes in random colours, each a pure function of (seed, split, index), cached once drawn.

    Like VOC, an image has one main class, sometimes several times, and now and then other classes beside it.
    """

    name = "shapes"
    outlines: Mapping[str, Outline] = OUTLINES
    class_names: tuple[str, ...] = tuple(outlines)
    has_background = True
    things = frozenset(range(1, len(class_names) + 1))

    def __init__(self, split: Literal["train", "val"], size: int = 64, num_images: int = 2000, seed: int = 0) -> None:
        if split not in ("train", "val"):
            raise UserError(f"Shapes has the splits train and val, not '{split}'.")
        if not SMALLEST <= size <= LARGEST:
            raise UserError(f"data.image_size is {size} but Shapes draws images of {SMALLEST} to {LARGEST} pixels.")
        if num_images < 1:
            raise UserError(f"Shapes needs at least 1 image, not {num_images}.")
        if seed < 0:
            raise UserError(f"data.seed is {seed} but must be 0 or more.")
        self.split = split
        self.size = size
        self.seed = seed
        # Plain arrays: compact, quick to pickle, and shared with forked loader processes.
        self._images = np.zeros((num_images, size, size, 3), dtype=np.uint8)
        self._instances = np.zeros((num_images, size, size), dtype=np.uint8)
        self._labels = np.zeros((num_images, MAX_OBJECTS + 1), dtype=np.uint8)  # object number -> dataset id
        self._drawn = np.zeros(num_images, dtype=bool)

    @property
    def colours(self) -> tuple[Colour, ...]:
        return palette(len(self.class_names) + 1)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        self._draw(index)
        instances = self._instances[index]
        semantic = self._labels[index][instances]
        image_id = f"{self.split}-{index:05d}"
        return Sample(self._images[index].copy(), semantic, instances.astype(np.int32), image_id)

    def presence(self) -> list[frozenset[int]]:
        """The classes of each image; draws all images, because occlusion decides what can be seen."""
        for index in range(len(self)):
            self._draw(index)
        return [frozenset(labels[labels > 0].tolist()) for labels in self._labels]

    def _draw(self, index: int) -> None:
        if self._drawn[index]:
            return
        entropy = (self.seed, ("train", "val").index(self.split), index)
        rng = np.random.default_rng(np.random.SeedSequence(entropy))
        image, instances, labels = draw_image(rng, self.size, tuple(self.outlines.values()))
        self._images[index] = image
        self._instances[index] = instances
        self._labels[index] = labels
        self._drawn[index] = True


class OtherShapes(Shapes):
    """Images like those of Shapes, of eight shapes that it lacks."""

    name = "shapes_other"
    outlines = OTHER_OUTLINES
    class_names = tuple(outlines)
    things = frozenset(range(1, len(class_names) + 1))


def build(config: DataConfig, split: Literal["train", "val"]) -> Shapes:
    """The split that the data section describes."""
    number = config.train_images if split == "train" else config.val_images
    return drawn_once(split, config.image_size, number, config.seed)


def build_other(config: DataConfig, split: Literal["train", "val"]) -> OtherShapes:
    """The same of the other shapes."""
    number = config.train_images if split == "train" else config.val_images
    return OtherShapes(split, config.image_size, number, config.seed)


@lru_cache(maxsize=4)
def drawn_once(split: Literal["train", "val"], size: int, num_images: int, seed: int) -> Shapes:
    """The same `Shapes` for all runs of one process, which would otherwise draw the same images again."""
    return Shapes(split, size, num_images, seed)


def draw_image(
    rng: np.random.Generator, size: int, outlines: Sequence[Outline]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image (S, S, 3), object numbers (S, S) and the class of each object number (MAX_OBJECTS + 1,), all uint8."""
    objects = random_layout(rng, len(outlines))
    canvas = background(rng, size)
    instances = np.zeros((size, size), dtype=np.uint8)
    labels = np.zeros(MAX_OBJECTS + 1, dtype=np.uint8)
    full_areas = []
    for number, placed in enumerate(objects, start=1):  # later objects lie over earlier ones
        cover = coverage(outlines[placed.label - 1], placed, size)
        paint(rng, canvas, cover)
        inside = cover > 127
        instances[inside] = number
        labels[number] = placed.label
        full_areas.append(int(inside.sum()))
    for number, full_area in enumerate(full_areas, start=1):
        visible = instances == number
        # What is left of a hidden object cannot be recognised: it is no object any more.
        if visible.sum() < max(0.25 * full_area, 0.006 * size * size):
            instances[visible] = 0
            labels[number] = 0
    grain = rng.integers(-5, 6, (size, size, 1))
    return np.clip(canvas + grain, 0.0, 255.0).round().astype(np.uint8), instances, labels


def random_layout(rng: np.random.Generator, num_classes: int) -> list[Placed]:
    """Which objects stand where: one main class, a third of the time other classes too."""
    main, *others = (int(label) + 1 for label in rng.permutation(num_classes)[:4])
    repeats = _draw_count(rng, (0.72, 0.22, 0.06)) + 1
    labels = [main] * repeats + others[: _draw_count(rng, (0.65, 0.22, 0.1, 0.03))]
    labels = [labels[place] for place in rng.permutation(len(labels))][:MAX_OBJECTS]
    smallest, largest = {1: (0.42, 0.72), 2: (0.38, 0.56), 3: (0.34, 0.48)}.get(len(labels), (0.3, 0.4))
    objects: list[Placed] = []
    for label in labels:
        diameter = rng.uniform(smallest, largest)
        margin = 0.46 * diameter
        # Of several places the one that leaves most room, so that occlusion stays partial.
        places = [rng.uniform(margin, 1.0 - margin, 2).tolist() for _ in range(8 if objects else 1)]
        x, y = max(places, key=lambda place: _room(place, objects))
        angle = rng.uniform(-20.0, 20.0)
        objects.append(Placed(label, x, y, diameter, angle, aspect=rng.uniform(0.85, 1.18)))
    return objects


def _draw_count(rng: np.random.Generator, shares: Sequence[float]) -> int:
    return int(np.searchsorted(np.cumsum(shares), rng.uniform(0.0, sum(shares)), side="right"))


def _room(place: Sequence[float], objects: Sequence[Placed]) -> float:
    distances = [((place[0] - o.x) ** 2 + (place[1] - o.y) ** 2) ** 0.5 - 0.5 * o.diameter for o in objects]
    return min(distances, default=0.0)
