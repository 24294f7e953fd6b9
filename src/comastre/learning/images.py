"""The user's data as the grown model labels it, and the part of it that is kept for scoring."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from comastre.data.dataset import IGNORE, Colour, Sample, SegmentationDataset
from comastre.data.files import FileDataset, LabelReader, Labels, Record
from comastre.data.images import image_size
from comastre.data.sources import DataSource, has_own_validation, open_split, split_for_scoring

HELD_OUT = 0.15
"""Share of a new class's images that is kept for scoring."""
EMPTY_SHARE = 4
"""Images that show nothing, per image that shows a class: on Shapes, 0, 1 and 4 of them with 60 images of a new class
gave it an IoU of 34, 54 and 61, and kept 87, 100 and 100 % of the old classes."""
ENOUGH_TO_SPARE = 5
"""Of a class with fewer images, all are needed for training."""


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
    )


def training_part(source: DataSource) -> SegmentationDataset:
    """The images to learn from, before any are held out."""
    return open_split(source, "train" if has_own_validation(source) else "all")


def scoring_part(source: DataSource) -> SegmentationDataset:
    """The images of data that was given for scoring: its validation split where it has one."""
    return open_split(source, split_for_scoring(source))


def hold_out(
    names: Sequence[str], presence: Sequence[Collection[int]], wanted: Collection[int], share: float = HELD_OUT
) -> tuple[int, ...]:
    """Images to keep for scoring: of every class `wanted` a share, but none of a class with too few images.

    Their names decide which, so that the same data always gives the same ones; a class keeps most of its images for
    training whatever other classes they show. Of images that show nothing a share, too: what is mistaken for a new
    class shows there.
    """
    order = _shuffled(names)
    totals = Counter(label for classes in presence for label in classes if label in wanted)
    quota = {label: _quota(total, share) for label, total in totals.items()}
    taken: Counter[int] = Counter()
    chosen = []
    for label in sorted(quota, key=lambda label: totals[label]):  # the rarest first: it has least choice
        for index in order:
            shown = [each for each in presence[index] if each in wanted]
            if taken[label] >= quota[label]:
                break
            # At most twice a class's share may go with the images of other classes.
            if label in shown and index not in chosen and all(taken[each] < 2 * quota[each] for each in shown):
                chosen.append(index)
                taken.update(shown)
    empty = [index for index in order if not presence[index]] if chosen else []
    return tuple(sorted([*chosen, *empty[: _quota(len(empty), share)]]))


def to_train_on(
    names: Sequence[str], presence: Sequence[Collection[int]], held_out: Collection[int]
) -> tuple[int, ...]:
    """The other images: all that show a class, and of those that show nothing at most `EMPTY_SHARE` times as many.

    An image without a label shows what is none of the new classes; too many would leave no time for those that are.
    """
    away = set(held_out)
    left = [index for index in _shuffled(names) if index not in away]
    labelled = [index for index in left if presence[index]]
    empty = [index for index in left if not presence[index]]
    return tuple(sorted([*labelled, *empty[: EMPTY_SHARE * len(labelled)]]))


def _shuffled(names: Sequence[str]) -> list[int]:
    """An order that the names alone decide."""
    return sorted(range(len(names)), key=lambda index: hashlib.sha256(names[index].encode()).digest())


def _quota(total: int, share: float) -> int:
    return max(1, round(share * total)) if total >= ENOUGH_TO_SPARE else 0


def image_names(dataset: SegmentationDataset) -> list[str]:
    """A name for every image, without reading it where it is a file."""
    if isinstance(dataset, FileDataset):
        return [record.name for record in dataset.records]
    return [str(index) for index in range(len(dataset))]


def typical_size(dataset: SegmentationDataset, most: int = 64) -> tuple[int, bool]:
    """Median short side of (up to `most` of) the images, and whether all of them have one size."""
    places = np.unique(np.linspace(0, len(dataset) - 1, most).round().astype(int)).tolist()
    if isinstance(dataset, FileDataset):
        sizes = [image_size(dataset.records[index].image) for index in places]
    else:
        sizes = [dataset[index].image.shape[:2] for index in places]
    return int(np.median([min(size) for size in sizes])), len(set(sizes)) == 1


def _translated(classes: Collection[int], table: np.ndarray) -> frozenset[int]:
    return frozenset(int(table[label]) for label in classes) - {0, IGNORE}
