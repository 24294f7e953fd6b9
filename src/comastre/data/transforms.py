"""From a sample to what training sees: augmentation (SPEC section 6) and target masks.

All randomness of a sample comes from one seed, so the pixels do not depend on which process draws them or when.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors  # type: ignore[import-untyped]
from torchvision.transforms import InterpolationMode, v2  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

from comastre.config import DataConfig
from comastre.data.dataset import IGNORE, Sample

PADDING_GREY = 128
_distort = v2.RandomPhotometricDistort()  # the SSD colour jitter


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied; the fields are those of the data section."""

    crop: int
    scale: tuple[float, float]
    flip: bool
    colour_jitter: bool

    @classmethod
    def of(cls, config: DataConfig) -> Augmentation:
        return cls(config.crop, config.scale, config.flip, config.colour_jitter)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generator that torchvision draws from, and put its state back afterwards.

    Only that one: `torch.manual_seed` would also reset the generators of the devices that train.
    """
    generator = torch.random.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


def augment(image: Tensor, labels: Tensor, options: Augmentation, seed: int) -> tuple[Tensor, Tensor]:
    """Rescale, crop, distort, flip and pad an image (3, H, W) uint8 with its label maps (K, H, W) to crop x crop.

    The padding is grey in the image and 255 in every label map.
    """
    with seeded(seed):
        # Always all four, in this order, so that switching one kind off leaves the others as they were.
        where_scale, where_top, where_left, where_flip = torch.rand(4).tolist()
        image, labels = _rescale(image, labels, options, where_scale)
        height, width = image.shape[-2:]
        new_height, new_width = min(height, options.crop), min(width, options.crop)
        if (new_height, new_width) != (height, width):
            top = int(where_top * (height - new_height + 1))
            left = int(where_left * (width - new_width + 1))
            image = functional.crop(image, top, left, new_height, new_width)
            labels = functional.crop(labels, top, left, new_height, new_width)
        if options.colour_jitter:
            image = _distort(tv_tensors.Image(image)).as_subclass(Tensor)
    if options.flip and where_flip < 0.5:
        image, labels = functional.horizontal_flip(image), functional.horizontal_flip(labels)
    missing = [0, 0, options.crop - new_width, options.crop - new_height]  # left, top, right, bottom
    if any(missing):
        image = functional.pad(image, missing, fill=PADDING_GREY)
        labels = functional.pad(labels, missing, fill=IGNORE)
    return image.contiguous(), labels.contiguous()


def _rescale(image: Tensor, labels: Tensor, options: Augmentation, where: float) -> tuple[Tensor, Tensor]:
    """Bring the short side to a random multiple of the crop."""
    smallest, largest = options.scale
    height, width = image.shape[-2:]
    short = max(1, round(options.crop * (smallest + where * (largest - smallest))))
    factor = short / min(height, width)
    size = [max(1, round(height * factor)), max(1, round(width * factor))]
    if size == [height, width]:
        return image, labels
    image = functional.resize(image, size, interpolation=InterpolationMode.BILINEAR, antialias=True)
    # "Exact" puts label pixels where bilinear interpolation puts image pixels.
    labels = functional.resize(labels, size, interpolation=InterpolationMode.NEAREST_EXACT)
    return image, labels


def semantic_targets(labels: Tensor) -> tuple[Tensor, Tensor]:
    """One mask per class: model labels (H, W) -> masks (G, H, W) bool, class indices (G,); ignored pixels in none."""
    counts = torch.bincount(labels.flatten(), minlength=IGNORE)[1:IGNORE]  # much faster than sorting
    indices = counts.nonzero()[:, 0]
    return labels == (indices + 1).to(labels.dtype)[:, None, None], indices


def instance_targets(labels: Tensor, instances: Tensor) -> tuple[Tensor, Tensor]:
    """One mask per object (instances (H, W), 0 = none); labelled pixels outside objects make one mask per class."""
    labelled = (labels > 0) & (labels != IGNORE)
    class_masks, class_indices = semantic_targets(torch.where(instances == 0, labels, 0))
    numbers = torch.unique(instances[labelled & (instances > 0)])
    masks = (instances[None] == numbers[:, None, None]) & labelled  # (G, H, W)
    # Where an object's pixels disagree about its class, most of them decide.
    indices = [int(torch.bincount(labels[mask].long()).argmax()) - 1 for mask in masks]
    return torch.cat([masks, class_masks]), torch.cat([torch.tensor(indices, dtype=torch.long), class_indices])


def training_example(
    sample: Sample, lookup: np.ndarray, options: Augmentation, by_instance: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Image (3, crop, crop) uint8, masks (G, crop, crop) bool and class indices (G,), seen through a task's lookup."""
    image = torch.from_numpy(np.ascontiguousarray(sample.image)).permute(2, 0, 1)
    maps = [lookup[sample.semantic].astype(np.int32)]
    if by_instance and sample.instances is not None:
        maps.append(sample.instances.astype(np.int32))
    image, labels = augment(image, torch.from_numpy(np.stack(maps)), options, seed)
    masks, indices = semantic_targets(labels[0]) if len(labels) == 1 else instance_targets(labels[0], labels[1])
    return image, masks, indices
