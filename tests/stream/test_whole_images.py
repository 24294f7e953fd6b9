"""A pass over whole images: each once, however it is split, as predictions see them and with a task's labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from comastre.config.run import RunConfig
from comastre.data.build import build_datasets
from comastre.data.dataset import IGNORE
from comastre.data.shown import shown
from comastre.stream.build import build_stream
from comastre.stream.scenario import Task
from comastre.stream.whole_images import few_of_each_first, some_of_each, whole_images


def config_of(**view: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "size": "tiny",
            "data": {"dataset": "shapes", "crop": 64, "train_images": 30, "val_images": 2, "workers": 0},
            "continual": {"setting": "6-4"},
            "view": view,
        }
    )


def test_every_image_comes_once_over_all_processes() -> None:
    config = config_of()
    dataset = build_datasets(config.data)[0]
    task = build_stream(config, dataset.presence(), dataset.class_names).tasks[1]
    whole = list(whole_images(dataset, task, config))
    assert [batch.targets.image_ids[0] for batch in whole] == [dataset[index].image_id for index in task.images]
    shares = [list(whole_images(dataset, task, config, rank, 2)) for rank in (0, 1)]
    assert [len(share) for share in shares] == [(len(whole) + 1) // 2, len(whole) // 2]
    for rank, share in enumerate(shares):
        for one, other in zip(share, whole[rank::2], strict=True):
            assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_images_are_seen_as_in_predictions_and_labelled_as_in_training() -> None:
    config = config_of(short_side=[64, 80])
    dataset = build_datasets(config.data)[0]
    task = build_stream(config, dataset.presence(), dataset.class_names).tasks[1]
    plain, larger, *_ = whole_images(dataset, task, config)
    sample = dataset[task.images[0]]
    image = torch.from_numpy(sample.image.copy()).permute(2, 0, 1)
    expected, padding = shown([image], [(80, 80)])
    assert torch.equal(plain.images[0], image) and plain.padding is None
    assert torch.equal(larger.images, expected) and padding is not None and larger.padding is not None
    assert torch.equal(larger.padding, padding)
    labels = torch.from_numpy(task.training_lookup()[sample.semantic])
    assert torch.equal(plain.labels[0].long(), labels)
    assert bool((larger.labels[padding] == IGNORE).all())
    assert set(larger.targets.labels[0].tolist()) == set((labels[(labels > 0) & (labels < IGNORE)] - 1).tolist())
    assert not (larger.targets.masks & padding[:, None]).any()


def test_some_images_of_each_class_are_as_many_as_asked_where_there_are_so_many() -> None:
    generator = np.random.default_rng(0)
    presence = [frozenset(np.flatnonzero(generator.random(6) < 0.15).tolist()) for _ in range(400)]
    presence[7] = frozenset({9})  # a class of one image
    task = Task(1, (2, 3, 9), (1, 4), (5,), (*range(0, 400, 3), 7), (4,))
    some = some_of_each(task, presence, 5)
    assert set(some.images) < set(task.images) and len(set(some.images)) == len(some.images)
    for label in (2, 3, 4, 9):
        shown = sum(label in presence[index] for index in task.images)
        assert sum(label in presence[index] for index in some.images) >= min(5, shown)
    # None is taken that no class needs, so that there are at most five for each.
    assert len(some.images) <= 4 * 5 and all(presence[index] & {2, 3, 4, 9} for index in some.images)
    assert np.ptp(some.images) > 200  # from all over
    assert some_of_each(task, presence, 1000).images != () and replace(some, images=task.images) == task


def test_a_few_images_of_every_class_come_first_where_time_may_end() -> None:
    generator = np.random.default_rng(0)
    presence = [frozenset(np.flatnonzero(generator.random(6) < 0.3).tolist()) for _ in range(400)]
    task = Task(1, (2, 3), (1, 4), (5,), tuple(range(0, 400, 3)), (4,))
    first, always = few_of_each_first(task, presence, 30)
    assert sorted(first.images) == sorted(some_of_each(task, presence, 30).images)
    assert first.images[:always] == some_of_each(task, presence, 8).images and 8 <= always <= 3 * 8
    for label in (2, 3, 4):
        assert sum(label in presence[index] for index in first.images[:always]) >= 8
    assert few_of_each_first(task, presence, 5)[1] == len(some_of_each(task, presence, 5).images)
