"""Where two models disagree on images, without any label: how often, on how many pixels, and what became what.

What is counted: docs/specification.md, The gate of a lesson.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SPECK = 0.001
"""Of an image's pixels: a class that a model sees on fewer is not counted as seen there."""
SAME = 0.5
"""IoU from which on two models see a class in the same place."""
MOSTLY = 0.5
"""Share of what a model calls a class in an image, from which on it is something else that carries its name."""


@dataclass(frozen=True)
class ClassAgreement:
    """What became of what the model before called a class."""

    name: str
    images: int
    """In which the model before sees it."""
    kept_images: int
    """Of these, in how many the model after sees it in the same place."""
    pixels: int
    """That the model before calls so."""
    kept_pixels: int
    """Of these, how many the model after calls so, too."""
    became: tuple[tuple[str, int], ...]
    """What it calls the others, with their pixels, the most first."""
    gained: int
    """Pixels that only the model after calls so."""

    @property
    def kept(self) -> float | None:
        """Percent of the images in which it stayed in its place; None where it was never seen."""
        return 100.0 * self.kept_images / self.images if self.images else None

    @property
    def kept_share(self) -> float | None:
        """Percent of its pixels that kept their name."""
        return 100.0 * self.kept_pixels / self.pixels if self.pixels else None


def misnamed(labels: np.ndarray, others: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where a model gives a class's name (labels, 0 background) to what mostly is another object in this image.

    That object has been named by somebody at `others`, and what is there is told at `known`; all are (H, W).
    """
    size = int(labels.max()) + 1
    on_others = np.bincount(labels[others & known], minlength=size)
    told = np.bincount(labels[known], minlength=size)
    wrong = (on_others > 0) & (on_others >= MOSTLY * told)
    wrong[0] = False
    return np.asarray(wrong[labels])


class Disagreement:
    """Counts pairs of label maps, image after image."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` of labels 0..C, which both models share: background first."""
        self.names = tuple(names)
        size = len(self.names)
        self.pixels = np.zeros((size, size), dtype=np.int64)
        """(before, after)."""
        self.images = 0
        self._seen = np.zeros(size, dtype=np.int64)
        self._kept = np.zeros(size, dtype=np.int64)

    def add(self, before: np.ndarray, after: np.ndarray, counted: np.ndarray | None = None) -> float:
        """Add one image's label maps (H, W), where `counted` (H, W) is true; gives the share that differs."""
        size = len(self.names)
        pairs = before.astype(np.int64) * size + after
        if counted is not None:
            pairs = pairs[counted]
        counts = np.bincount(pairs.reshape(-1), minlength=size * size).reshape(size, size)
        same, was, now = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
        seen = was > SPECK * before.size
        self.pixels += counts
        self.images += 1
        self._seen += seen
        self._kept += seen & (same >= SAME * (was + now - same))
        total = int(counts.sum())
        return 1.0 - int(same.sum()) / total if total else 0.0

    @property
    def share(self) -> float:
        """Percent of all counted pixels on which the two differ."""
        total = int(self.pixels.sum())
        return 100.0 * (1.0 - int(self.pixels.trace()) / total) if total else 0.0

    def of(self, label: int) -> ClassAgreement:
        """What became of a label."""
        row = self.pixels[label]
        others = sorted(
            ((self.names[other], int(row[other])) for other in np.flatnonzero(row) if other != label),
            key=lambda pair: -pair[1],
        )
        return ClassAgreement(
            name=self.names[label],
            images=int(self._seen[label]),
            kept_images=int(self._kept[label]),
            pixels=int(row.sum()),
            kept_pixels=int(row[label]),
            became=tuple(others),
            gained=int(self.pixels[:, label].sum() - row[label]),
        )
