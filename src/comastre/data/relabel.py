"""A dataset seen through another list of classes: some of its samples, with their ids translated."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from comastre.class_table import Colour
from comastre.data.dataset import IGNORE, Sample, SegmentationDataset
from comastre.data.files import FileDataset, LabelReader, Labels, Record


@dataclass(frozen=True)
class RelabelledReader:
    """Reads labels of another reader's records `indices` and translates their ids."""

    read: LabelReader
    table: np.ndarray
    """(256,) uint8: dataset id -> model label."""
    indices: tuple[int, ...]

    def __call__(self, index: int, record: Record, size: tuple[int, int] | None) -> Labels:
        labels = self.read(self.indices[index], record, size)
        return Labels(self.table[labels.semantic], labels.instances)


class Relabelled:
    """Some samples of a dataset with their ids translated, for datasets that are not files; may be empty."""

    def __init__(
        self,
        dataset: SegmentationDataset,
        table: np.ndarray,
        indices: Sequence[int],
        class_names: tuple[str, ...],
        colours: tuple[Colour, ...],
    ) -> None:
        self.dataset = dataset
        self.table = table
        self.indices = tuple(indices)
        self.name: str = dataset.name
        self.class_names: tuple[str, ...] = class_names
        self.colours: tuple[Colour, ...] = colours
        self.has_background: bool = dataset.has_background
        self.things: frozenset[int] = _translated(dataset.things, table)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[self.indices[index]]
        return Sample(sample.image, self.table[sample.semantic], sample.instances, sample.image_id)

    def presence(self) -> list[frozenset[int]]:
        presence = self.dataset.presence() if self.indices else []
        return [_translated(presence[index], self.table) for index in self.indices]


def relabel(
    dataset: SegmentationDataset,
    labels: Sequence[int],
    class_names: tuple[str, ...],
    colours: tuple[Colour, ...],
    indices: Sequence[int] | None = None,
) -> SegmentationDataset:
    """The samples `indices` (all) with dataset id i as model label labels[i - 1]; 0 and 255 stay what they are."""
    table = np.zeros(256, dtype=np.uint8)
    table[1 : len(labels) + 1] = labels
    table[IGNORE] = IGNORE
    chosen = tuple(range(len(dataset))) if indices is None else tuple(indices)
    if not chosen or not isinstance(dataset, FileDataset):
        return Relabelled(dataset, table, chosen, class_names, colours)
    # A dataset of files again, because training decodes those no larger than it needs. The split's name tells its
    # class-presence index from those of the same files with other ids.
    mark = hashlib.sha256(table.tobytes() + repr(chosen).encode()).hexdigest()[:8]
    return FileDataset(
        dataset.name,
        f"{dataset.split}-{mark}",
        class_names,
        colours,
        [dataset.records[index] for index in chosen],
        RelabelledReader(dataset.read_labels, table, chosen),
        dataset.has_background,
        things=_translated(dataset.things, table),
    )


def _translated(classes: Collection[int], table: np.ndarray) -> frozenset[int]:
    return frozenset(int(table[label]) for label in classes) - {0, IGNORE}
