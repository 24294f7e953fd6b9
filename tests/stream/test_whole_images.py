"""A pass over whole images: each once, however it is split, as predictions see them and with a task's labels."""

from __future__ import annotations

from typing import Any

import torch

from comastre.config.run import RunConfig
from comastre.data.build import build_datasets
from comastre.data.dataset import IGNORE
from comastre.data.shown import shown
from comastre.stream.build import build_stream
from comastre.stream.whole_images import whole_images


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
