"""From a sample to what training sees: augmentation (SPEC section 6) and target masks.

All randomness of a sample comes from one seed, so the pixels do not depend on which process draws them or when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

from comastre.config import DataConfig
from comastre.data.colour import distort
from comastre.data.dataset import IGNORE, Sample

PADDING_GREY = 128


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied; the fields are those of the data section."""

    crop: int
    scale: tuple[float, float]
    flip: bool
    colour_jitter: bool

    @classmethod
    def of(cls, config: DataConfig, step: int = 0) -> Augmentation:
        scale = config.later_scale if step > 0 and config.later_scale else config.scale
        return cls(config.crop, scale, config.flip, config.colour_jitter)


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


@dataclass(frozen=True)
class Crop:
    """Which part of the rescaled image training sees; drawn before a pixel is touched."""

    size: tuple[int, int]
    """(H, W) of the whole image after rescaling."""
    top: int
    left: int
    height: int
    """At most the crop; the rest is padded."""
    width: int
    flip: bool
    side: int
    """Height and width after padding."""


def draw_short_side(options: Augmentation, seed: int) -> int:
    """The short side to which `augment` will bring any image with this seed."""
    with seeded(seed):
        return _short_side(options, torch.rand(4).tolist()[0])


def _short_side(options: Augmentation, where: float) -> int:
    smallest, largest = options.scale
    return max(1, round(options.crop * (smallest + where * (largest - smallest))))


def _draw_crop(full_size: tuple[int, int], options: Augmentation) -> Crop:
    # Always all four, in this order, so that switching one kind off leaves the others as they were.
    where_scale, where_top, where_left, where_flip = torch.rand(4).tolist()
    factor = _short_side(options, where_scale) / min(full_size)
    height, width = (max(1, round(side * factor)) for side in full_size)
    new_height, new_width = min(height, options.crop), min(width, options.crop)
    top = int(where_top * (height - new_height + 1))
    left = int(where_left * (width - new_width + 1))
    flip = options.flip and where_flip < 0.5
    return Crop((height, width), top, left, new_height, new_width, flip, options.crop)


def augment(
    image: Tensor, labels: Sequence[Tensor], options: Augmentation, seed: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Rescale, crop, distort, flip and pad an image (3, h, w) uint8 with its label maps (H, W) to crop x crop.

    The image may have been read smaller than its label maps. The padding is grey in the image and 255 in label maps.
    """
    with seeded(seed):
        full_height, full_width = labels[0].shape
        crop = _draw_crop((full_height, full_width), options)
        image = _cut_image(image, crop).contiguous()
        if options.colour_jitter:
            image = distort(image)
    missing = [0, 0, crop.side - crop.width, crop.side - crop.height]  # left, top, right, bottom
    if crop.flip:
        image = functional.horizontal_flip(image)
    if any(missing):
        image = functional.pad(image, missing, fill=PADDING_GREY)
    return image.contiguous(), tuple(_cut_labels(each, crop, missing) for each in labels)


def _cut_image(image: Tensor, crop: Crop) -> Tensor:
    if tuple(image.shape[-2:]) != crop.size:
        image = functional.resize(image, list(crop.size), interpolation=InterpolationMode.BILINEAR, antialias=True)
    return functional.crop(image, crop.top, crop.left, crop.height, crop.width)


def _cut_labels(labels: Tensor, crop: Crop, missing: list[int]) -> Tensor:
    """The crop of a label map as nearest-exact resizing of the whole map would give it, of which only it is read."""
    rows = _nearest(labels.shape[0], crop.size[0], crop.top, crop.height)
    columns = _nearest(labels.shape[1], crop.size[1], crop.left, crop.width)
    if crop.flip:
        columns = columns.flip(0)
    # Indexing one axis after the other in numpy takes a fifth of torch's time.
    cut = torch.from_numpy(labels.numpy()[rows.numpy()][:, columns.numpy()])
    return functional.pad(cut[None], missing, fill=IGNORE)[0] if any(missing) else cut


def _nearest(old: int, new: int, first: int, num: int) -> Tensor:
    """The old pixels under the centres of the new pixels first..first + num - 1."""
    # In 32 bits, as torch's nearest-exact does it: a centre on the edge of two pixels then falls to the same one.
    factor = torch.tensor(float(old)) / new
    return torch.floor((torch.arange(first, first + num) + 0.5) * factor).long().clamp_(max=old - 1)


def semantic_targets(labels: Tensor) -> tuple[Tensor, Tensor]:
    """One mask per class: model labels (H, W) -> masks (G, H, W) bool, class indices (G,); ignored pixels in none."""
    counts = torch.bincount(labels.flatten(), minlength=IGNORE)[1:IGNORE]  # much faster than sorting
    indices = counts.nonzero()[:, 0]
    # numpy compares bytes many at a time.
    masks = labels.numpy() == (indices + 1).to(labels.dtype).numpy()[:, None, None]
    return torch.from_numpy(masks), indices


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
    image = _tensor(sample.image).permute(2, 0, 1)
    maps = [_tensor(sample.semantic)]
    if by_instance and sample.instances is not None:
        maps.append(_tensor(sample.instances))
    image, (semantic, *instances) = augment(image, maps, options, seed)
    # Only the crop goes through the lookup: the whole map of a photograph has ten times as many pixels.
    labels = torch.from_numpy(lookup.astype(np.uint8).take(semantic.numpy()))
    masks, indices = instance_targets(labels, instances[0]) if instances else semantic_targets(labels)
    return image, masks, indices


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values if values.flags.writeable else values.copy())
