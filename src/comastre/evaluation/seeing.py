"""How a model is shown images: the one way from pixels of any size to segmentations of that size.

A run's evaluation, `eval`, `predict`, `learn` and the examples of a report all go through here, so that one model has
one score. Images are resized as their view says and padded to a multiple of 32. Only images of one padded size share a
forward pass: beside a larger image one would be padded further, and a convolution that looks over the edge of the
padding sees zeros where it had seen the backbone's answer to more padding. So a result does not depend on which other
images a batch holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comastre.config.view import ViewConfig, padded_size
from comastre.data.shown import shown
from comastre.evaluation.looks import combined
from comastre.segmentation import Segmentation, SegmentImages, Size


# Not inference_mode: a tensor that the model caches meanwhile could not be used in training afterwards.
@torch.no_grad()
def see(
    segment: SegmentImages, images: Sequence[Tensor], view: ViewConfig, device: torch.device | str = "cpu"
) -> list[Segmentation]:
    """What a model in eval mode says of images (3, H, W) uint8 on the host, each result at its image's own size."""
    sizes = [view.seen_sizes(*_size(image)) for image in images]
    looks = [_look(segment, images, [each[number] for each in sizes], device) for number in range(len(view.sides))]
    return looks[0] if len(looks) == 1 else [combined(each) for each in zip(*looks, strict=True)]


def _look(
    segment: SegmentImages, images: Sequence[Tensor], sizes: Sequence[Size], device: torch.device | str
) -> list[Segmentation]:
    """What the model says of images that it sees at these sizes."""
    found: dict[int, Segmentation] = {}
    for group in _of_one_size(sizes):
        batch, padding = shown([images[index] for index in group], [sizes[index] for index in group])
        results = segment(
            batch.to(device),
            None if padding is None else padding.to(device),
            [sizes[index] for index in group],
            [_size(images[index]) for index in group],
        )
        found.update(zip(group, results, strict=True))
    return [found[index] for index in range(len(images))]


def _of_one_size(sizes: Sequence[Size]) -> list[list[int]]:
    """Indices of images that have one size after padding, together."""
    groups: dict[Size, list[int]] = {}
    for index, size in enumerate(sizes):
        groups.setdefault(padded_size(*size), []).append(index)
    return list(groups.values())


def _size(image: Tensor) -> Size:
    return image.shape[-2], image.shape[-1]
