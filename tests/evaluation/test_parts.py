"""Connected parts of label maps as proposals, by hand."""

from __future__ import annotations

import numpy as np
import torch

from comastre.evaluation.parts import MOST, parts_of


def test_parts_of_every_label_are_apart_and_the_largest_come_first() -> None:
    labels = torch.tensor(
        [
            [1, 1, 0, 2, 2],
            [1, 0, 0, 0, 2],
            [0, 0, 1, 0, 0],
        ]
    )
    found = parts_of(labels, num_classes=2)
    masks = found.masks()
    assert masks.sum(dim=(1, 2)).tolist() == [8, 3, 3, 1]  # background, then the two corners, then the single pixel
    assert found.classes.tolist() == [-1, 0, 1, 0]  # background is a proposal that is recognised as nothing
    assert found.class_scores.sum(dim=1).tolist() == [0, 1, 1, 1]
    assert torch.equal(masks.sum(dim=0), torch.ones(3, 5, dtype=torch.long))
    assert found.objectness.tolist() == [0.5, 1.0, 1.0, 1.0]


def test_an_image_of_noise_has_no_more_parts_than_are_looked_at() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (64, 64)))
    found = parts_of(noise, num_classes=2)
    sizes = found.masks().sum(dim=(1, 2))
    assert len(sizes) == MOST
    assert sizes.tolist() == sorted(sizes.tolist(), reverse=True)


def test_parts_that_touch_at_a_corner_are_two() -> None:
    found = parts_of(torch.tensor([[1, 0], [0, 1]]), num_classes=1)
    assert len(found.objectness) == 4
