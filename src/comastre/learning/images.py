"""The user's data as the grown model labels it, and the part of it that is kept for scoring."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from comastre.data.dataset import SegmentationDataset
from comastre.data.files import FileDataset
from comastre.data.images import image_size
from comastre.data.sources import DataSource, has_own_validation, open_split, split_for_scoring

HELD_OUT = 0.15
"""Share of a new class's images that is kept for scoring."""
EMPTY_SHARE = 4
"""Images that show nothing, per image that shows a class, at most: they teach what is none of the new classes, and more
of them would take the time for those that are (docs/experiments.md, Learning a class from few images)."""
ENOUGH_TO_SPARE = 5
"""Of a class with fewer images, all are needed for training."""


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
    order = in_order_of_names(names)
    totals = Counter(label for classes in presence for label in classes if label in wanted)
    quota = {label: _quota(total, share) for label, total in totals.items()}
    taken: Counter[int] = Counter()
    chosen = []
    for label in sorted(quota, key=lambda label: totals[label]):  # the rarest first: it has the fewest images
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
    left = [index for index in in_order_of_names(names) if index not in away]
    labelled = [index for index in left if presence[index]]
    empty = [index for index in left if not presence[index]]
    return tuple(sorted([*labelled, *empty[: EMPTY_SHARE * len(labelled)]]))


def in_order_of_names(names: Sequence[str]) -> list[int]:
    """Indices in a mixed order that the names alone decide."""
    return sorted(
        range(len(names)), key=lambda index: hashlib.sha256(names[index].encode(errors="surrogatepass")).digest()
    )


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
