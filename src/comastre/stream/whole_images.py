"""Every image of a task once, whole, as the model sees it in predictions and with the labels that the task shows.

Nothing is drawn at random: what a pass finds does not depend on the step, on the order of classes, or on the processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from comastre.config.run import RunConfig
from comastre.config.view import padded_size
from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.data.shown import shown
from comastre.data.targets import Targets
from comastre.data.transforms import instance_targets, resized_labels, semantic_targets
from comastre.errors import UserError
from comastre.stream.loading import Batch, load_in_order
from comastre.stream.scenario import Task

_GOLDEN = 0.618033988749895
FEWEST = 8
"""Images of each class that are looked at however little time there is."""


class WholeImages(Dataset[tuple[Batch, ...] | UserError]):
    """By the image's place in the task: one batch of one image for every look of the view."""

    def __init__(self, dataset: SegmentationDataset, task: Task, config: RunConfig) -> None:
        self.dataset = dataset
        self.task = task
        self.view = config.view.at(config.data.crop)
        self.by_instance = config.data.masks == "instance"
        self.lookup = task.training_lookup().astype(np.uint8)

    def __getitem__(self, place: int) -> tuple[Batch, ...] | UserError:
        """An error is a value, as loaders would wrap its text in theirs."""
        try:
            sample = self.dataset[self.task.images[place]]
        except UserError as error:
            return error
        image = torch.from_numpy(np.array(sample.image)).permute(2, 0, 1)  # (3, h, w)
        semantic = torch.from_numpy(self.lookup.take(sample.semantic))
        instances = torch.from_numpy(np.array(sample.instances)) if sample.instances is not None else None
        sizes = self.view.seen_sizes(image.shape[-2], image.shape[-1])
        return tuple(self._batch(place, image, semantic, instances, size, sample.image_id) for size in sizes)

    def _batch(
        self, place: int, image: Tensor, semantic: Tensor, instances: Tensor | None, size: tuple[int, int], name: str
    ) -> Batch:
        images, padding = shown([image], [size])
        labels = _padded(resized_labels(semantic, size), IGNORE)
        if self.by_instance and instances is not None:
            masks, classes = instance_targets(labels, _padded(resized_labels(instances, size), 0))
        else:
            masks, classes = semantic_targets(labels)
        targets = Targets.stack([masks], [classes], [name])
        rows = slice(place, place + 1)
        return Batch(images, padding, labels[None], targets, rows, len(self.task.images), 0)


def _padded(labels: Tensor, fill: int) -> Tensor:
    height, width = labels.shape
    full = labels.new_full(padded_size(height, width), fill)
    full[:height, :width] = labels
    return full


def some_of_each(task: Task, presence: Sequence[Collection[int]], most: int) -> Task:
    """The task with fewer images: of each class that it labels up to `most`, from all over the dataset.

    `presence` has the dataset ids that each image of the training set shows.
    """
    wanted = {*task.new_classes, *task.labelled_old_classes}
    taken: Counter[int] = Counter()
    chosen = []
    # Places a golden section apart: neighbours, which may be of one film, come last.
    for place in sorted(range(len(task.images)), key=lambda place: place * _GOLDEN % 1):
        index = task.images[place]
        labelled = wanted.intersection(presence[index])
        if any(taken[label] < most for label in labelled):
            taken.update(labelled)
            chosen.append(index)
    return replace(task, images=tuple(chosen))


def few_of_each_first(task: Task, presence: Sequence[Collection[int]], most: int) -> tuple[Task, int]:
    """The task of `some_of_each` with few images of every class first, and how many these are."""
    few = some_of_each(task, presence, min(FEWEST, most)).images
    first = set(few)
    others = [index for index in some_of_each(task, presence, most).images if index not in first]
    return replace(task, images=(*few, *others)), len(few)


def whole_images(
    dataset: SegmentationDataset, task: Task, config: RunConfig, rank: int = 0, world_size: int = 1
) -> Generator[Batch]:
    """Every image of the task once over all processes."""
    share = range(rank, len(task.images), world_size)
    for looks in load_in_order(WholeImages(dataset, task, config), share, config.data.workers):
        yield from looks
