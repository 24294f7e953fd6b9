"""What is counted in label maps: pixels of each label, and how often another label lies beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.data.files import FileDataset

_NONE = (0,) * 256


@dataclass(frozen=True)
class LabelCounts:
    """Of one label map or of many."""

    pixels: tuple[int, ...] = _NONE
    """Of every label 0..255."""
    borders: tuple[int, ...] = _NONE
    """Of every label 0..255: pairs of neighbouring pixels in which it meets another one; 255 meets nobody."""

    @classmethod
    def of(cls, labels: np.ndarray) -> LabelCounts:
        """In a label map (H, W)."""
        borders = np.zeros(256, dtype=np.int64)
        for before, after in ((labels[:, :-1], labels[:, 1:]), (labels[:-1], labels[1:])):
            differ = (before != after) & (before != IGNORE) & (after != IGNORE)
            borders += np.bincount(before[differ], minlength=256) + np.bincount(after[differ], minlength=256)
        pixels = np.bincount(labels.reshape(-1), minlength=256)
        return cls(tuple(pixels.tolist()), tuple(borders.tolist()))

    @classmethod
    def sum(cls, counts: Iterable[LabelCounts]) -> LabelCounts:
        every = [cls(), *counts]
        return cls(
            tuple(map(sum, zip(*(each.pixels for each in every), strict=True))),
            tuple(map(sum, zip(*(each.borders for each in every), strict=True))),
        )


def some_label_counts(dataset: SegmentationDataset, most: int = 32) -> LabelCounts:
    """Of up to `most` images from all over the dataset, whose photographs are not read where labels are files."""
    places = np.unique(np.linspace(0, len(dataset) - 1, most).round().astype(int)).tolist()
    return LabelCounts.sum(LabelCounts.of(_labels(dataset, place)) for place in places)


def _labels(dataset: SegmentationDataset, place: int) -> np.ndarray:
    if isinstance(dataset, FileDataset):
        return dataset.read_labels(place, dataset.records[place], None).semantic
    return dataset[place].semantic
