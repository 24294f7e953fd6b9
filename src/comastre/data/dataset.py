"""What every dataset gives: images with label maps in dataset ids, and which classes each image shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from comastre.class_table import Colour

IGNORE = 255
"""Label of pixels that count neither in training nor in evaluation."""


@dataclass(frozen=True)
class Sample:
    """One image with its ground truth."""

    image: np.ndarray
    """(H, W, 3) uint8; for training it may have been decoded smaller than the label maps."""
    semantic: np.ndarray
    """(H, W) uint8 dataset ids: 0 background or void, 1..C classes, 255 ignore."""
    instances: np.ndarray | None
    """(H, W) int32 object numbers, 0 where there is no object; None where the dataset does not know objects."""
    image_id: str
    """Name for messages and reports."""


class SegmentationDataset(Protocol):
    """A sequence of samples; attributes are read-only so that frozen classes fit."""

    @property
    def name(self) -> str:
        """Short name, as in `data.dataset`."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """C names without background: dataset id i is class_names[i - 1]."""

    @property
    def colours(self) -> tuple[Colour, ...]:
        """C + 1 colours for pictures, background first."""

    @property
    def has_background(self) -> bool:
        """Whether id 0 is a real background (VOC, Shapes) rather than unlabelled pixels (ADE20K)."""

    @property
    def things(self) -> frozenset[int]:
        """Dataset ids of the classes that have objects (a car); the others are stuff (the sky)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def presence(self) -> list[frozenset[int]]:
        """The classes (1..C) of each image, without background and ignore."""
