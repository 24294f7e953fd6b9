"""Batches for training and evaluation that are the same however the work is split.

Image, order and augmentation of every place in every global batch follow from (seed, step, iteration, place): loader
processes, training processes and a restart in the middle cannot change them.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from comastre.config.run import RunConfig
from comastre.data.dataset import Sample, SegmentationDataset
from comastre.data.files import FileDataset
from comastre.data.targets import Targets
from comastre.data.transforms import Augmentation, draw_short_side, training_example
from comastre.errors import UserError
from comastre.stream.scenario import Task

Value = TypeVar("Value")
_ORDER, _AUGMENTATION = 0, 1  # keep the two streams of random numbers apart


@dataclass(frozen=True)
class Batch:
    """The part of one iteration's global batch that one forward pass sees."""

    images: Tensor
    """(B, 3, H, W) uint8; the model normalises."""
    padding: Tensor | None
    """(B, H, W) bool, true where a smaller image was padded to the batch; None where nothing was."""
    labels: Tensor
    """(B, H, W) uint8 model labels: 0 background, k + 1 class k, 255 ignored or padded."""
    targets: Targets
    """The same as masks, where ignored and padded pixels are in none."""
    rows: slice
    """Which rows of the global batch these are."""
    global_batch: int
    """Images of the iteration over all processes."""
    iteration: int
    """0-based within the step."""

    def to(self, device: torch.device | str) -> Batch:
        padding = None if self.padding is None else self.padding.to(device, non_blocking=True)
        images = self.images.to(device, non_blocking=True)
        labels = self.labels.to(device, non_blocking=True)
        return replace(self, images=images, padding=padding, labels=labels, targets=self.targets.to(device))


# --- training --------------------------------------------------------------------------------------------------------


class TrainingStream(Dataset[tuple[Batch, ...] | UserError]):
    """Random access by iteration to one process's share of a task's endless stream of batches."""

    def __init__(
        self, dataset: SegmentationDataset, task: Task, config: RunConfig, rank: int = 0, world_size: int = 1
    ) -> None:
        parts = world_size * config.training.accumulate
        if config.training.batch_size % parts:
            raise UserError(
                f"training.batch_size is {config.training.batch_size} but must be a multiple of "
                f"processes x training.accumulate = {world_size} x {config.training.accumulate}."
            )
        self.dataset = dataset
        self.task = task
        self.seed = config.seed % 2**63  # SeedSequence knows no negative numbers
        self.global_batch = config.training.batch_size
        self.rank = rank
        self.accumulate = config.training.accumulate
        self.rows_per_part = self.global_batch // parts
        self.by_instance = config.data.masks == "instance"
        self.augmentation = Augmentation.of(config.data, task.step)
        self.lookup = task.training_lookup()

    def indices_for(self, iteration: int) -> list[int]:
        """Dataset indices of the global batch: entries [i B, (i + 1) B) of one permutation after another."""
        length = len(self.task.images)
        epoch, offset = divmod(iteration * self.global_batch, length)
        entries: list[int] = []
        while len(entries) < self.global_batch:
            missing = self.global_batch - len(entries)
            order = _permutation(self.task.images, self.seed, self.task.step, epoch)
            entries += order[offset : offset + missing].tolist()
            epoch, offset = epoch + 1, 0
        return entries

    def __getitem__(self, iteration: int) -> tuple[Batch, ...] | UserError:
        """The micro-batches of this process; an error is a value, as loaders would wrap its text in theirs."""
        try:
            with _one_thread():
                indices = self.indices_for(iteration)
                first = self.rank * self.accumulate * self.rows_per_part
                starts = [first + part * self.rows_per_part for part in range(self.accumulate)]
                return tuple(self._batch(iteration, indices, slice(s, s + self.rows_per_part)) for s in starts)
        except UserError as error:
            return error

    def _batch(self, iteration: int, indices: Sequence[int], rows: slice) -> Batch:
        examples, image_ids = [], []
        for place in range(rows.start, rows.stop):
            entropy = (self.seed, self.task.step, _AUGMENTATION, iteration, place)
            seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))
            sample = self._sample(indices[place], seed)
            examples.append(training_example(sample, self.lookup, self.augmentation, self.by_instance, seed))
            image_ids.append(sample.image_id)
        images = torch.stack([example.image for example in examples])
        labels = torch.stack([example.labels for example in examples])
        targets = Targets.stack(
            [example.masks for example in examples], [example.classes for example in examples], image_ids
        )
        return Batch(images, None, labels, targets, rows, self.global_batch, iteration)

    def _sample(self, index: int, seed: int) -> Sample:
        """The sample, whose image is decoded no larger than its augmentation with this seed needs."""
        if isinstance(self.dataset, FileDataset):
            return self.dataset.sample(index, draw_short_side(self.augmentation, seed))
        return self.dataset[index]


@lru_cache(maxsize=4)
def _permutation(images: tuple[int, ...], seed: int, step: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(np.random.SeedSequence((seed, step, _ORDER, epoch))).permutation(images)


def training_batches(
    dataset: SegmentationDataset,
    task: Task,
    config: RunConfig,
    start: int = 0,
    rank: int = 0,
    world_size: int = 1,
    stop: int | None = None,
) -> Iterator[tuple[Batch, ...]]:
    """For every iteration from `start` on (to `stop`, or for ever), the micro-batches of this process."""
    stream = TrainingStream(dataset, task, config, rank, world_size)
    iterations = count(start) if stop is None else range(start, stop)
    return load_in_order(stream, iterations, config.data.workers)


# --- evaluation ------------------------------------------------------------------------------------------------------


class _EvaluationBatches(Dataset[tuple[Sample, ...] | UserError]):
    def __init__(self, dataset: SegmentationDataset, batches: Sequence[Sequence[int]]) -> None:
        self.dataset = dataset
        self.batches = batches

    def __getitem__(self, number: int) -> tuple[Sample, ...] | UserError:
        try:
            return tuple(self.dataset[index] for index in self.batches[number])
        except UserError as error:
            return error


def evaluation_batches(
    dataset: SegmentationDataset, batch_size: int, rank: int = 0, world_size: int = 1, workers: int = 0
) -> Iterator[tuple[Sample, ...]]:
    """Every image of the dataset once over all processes, at its own size; shares may differ by one image."""
    share = range(rank, len(dataset), world_size)
    batches = [share[first : first + batch_size] for first in range(0, len(share), batch_size)]
    return load_in_order(_EvaluationBatches(dataset, batches), range(len(batches)), workers)


# --- loader processes ------------------------------------------------------------------------------------------------


class _InOrder(Sampler[int]):
    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def load_in_order(dataset: Dataset[Value | UserError], numbers: Iterable[int], workers: int) -> Iterator[Value]:
    """The items `numbers` of a dataset in order, made by loader processes; none are started for `workers` 0."""
    if workers == 0:
        items: Iterator[Value | UserError] = (dataset[number] for number in numbers)
    else:
        items = _start_workers(dataset, numbers, workers)
    failure = None
    for item in items:
        if isinstance(item, UserError):
            failure = item
            break
        yield item
    del items  # ends the loader processes now: a traceback would hold them, and the exit wait for them for ever
    if failure is not None:
        raise failure


def _start_workers(dataset: Dataset[Value], numbers: Iterable[int], workers: int) -> Iterator[Value]:
    with warnings.catch_warnings():
        # Both are advice that the user cannot act on: results do not depend on the number of processes, and loader
        # processes run none of the threads that they would miss after a fork.
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=_InOrder(numbers),
            num_workers=workers,
            # A fork reads what the parent has drawn already; elsewhere the platform decides.
            multiprocessing_context="fork" if sys.platform == "linux" else None,
            worker_init_fn=_leave_signals_to_the_parent,
            generator=torch.Generator(),  # else the loader would draw from the training's random numbers
        )
        return iter(loader)


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C reaches the whole process group: let the parent save and then stop the loader processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads: in the training process, too, images are made by one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
