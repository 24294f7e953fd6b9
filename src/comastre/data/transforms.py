"""From a sample to what training sees: augmentation (docs/specification.md, Augmentation) and target masks.

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

from comastre.config.run import DataConfig
from comastre.data.colour import distort
from comastre.data.dataset import IGNORE, Sample

PADDING_GREY = 128
NARROWEST = 0.25
"""Of an image's side: strips beside labelled objects that are narrower show too little."""
_BESIDE = 0x5DEECE66D  # keeps this decision's random number apart from those of the crop


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied; the fields are those of the data section."""

    crop: int
    scale: tuple[float, float]
    flip: bool
    colour_jitter: bool
    beside: float = 0.0
    """Share of crops beside the labelled objects."""

    @classmethod
    def of(cls, config: DataConfig, step: int = 0) -> Augmentation:
        scale = config.later_scale if step > 0 and config.later_scale else config.scale
        return cls(config.crop, scale, config.flip, config.colour_jitter, config.later_beside if step > 0 else 0.0)


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


@dataclass(frozen=True)
class Window:
    """A part of an image: rows top to bottom - 1, columns left to right - 1."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def width(self) -> int:
        return self.right - self.left

    def scaled(self, old: tuple[int, int], new: tuple[int, int]) -> Window:
        """The pixels that lie wholly in it after the image went from size `old` to `new` (H, W); at least one."""
        top, bottom = _scaled(self.top, self.bottom, old[0], new[0])
        left, right = _scaled(self.left, self.right, old[1], new[1])
        return Window(top, left, bottom, right)


def _scaled(start: int, stop: int, old: int, new: int) -> tuple[int, int]:
    first = min(-(-start * new // old), new - 1)
    return first, max(first + 1, stop * new // old)


def beside(labelled: np.ndarray) -> Window | None:
    """The largest strip above, below, left or right of all that is labelled (H, W); None where there is no room.

    It shows what surrounds new objects, and old ones among it, but no new one: later steps' images all show some.
    """
    rows, columns = np.flatnonzero(labelled.any(axis=1)), np.flatnonzero(labelled.any(axis=0))
    if not len(rows):
        return None
    height, width = labelled.shape
    strips = (
        Window(0, 0, int(rows[0]), width),
        Window(int(rows[-1]) + 1, 0, height, width),
        Window(0, 0, height, int(columns[0])),
        Window(0, int(columns[-1]) + 1, height, width),
    )
    wide = [each for each in strips if each.height >= NARROWEST * height and each.width >= NARROWEST * width]
    return max(wide, key=lambda each: each.height * each.width, default=None)


def draw_short_side(options: Augmentation, seed: int) -> int:
    """The short side to which `augment` will bring any image with this seed."""
    with seeded(seed):
        return _short_side(options, torch.rand(4).tolist()[0])


def _short_side(options: Augmentation, where: float) -> int:
    smallest, largest = options.scale
    return max(1, round(options.crop * (smallest + where * (largest - smallest))))


def _draw_crop(full_size: tuple[int, int], options: Augmentation, within: Window | None = None) -> Crop:
    # Always all four, in this order, so that switching one kind off leaves the others as they were.
    where_scale, where_top, where_left, where_flip = torch.rand(4).tolist()
    factor = _short_side(options, where_scale) / min(full_size)
    height, width = (max(1, round(side * factor)) for side in full_size)
    part = within.scaled(full_size, (height, width)) if within is not None else Window(0, 0, height, width)
    new_height, new_width = min(part.height, options.crop), min(part.width, options.crop)
    top = part.top + int(where_top * (part.height - new_height + 1))
    left = part.left + int(where_left * (part.width - new_width + 1))
    flip = options.flip and where_flip < 0.5
    return Crop((height, width), top, left, new_height, new_width, flip, options.crop)


def augment(
    image: Tensor, labels: Sequence[Tensor], options: Augmentation, seed: int, within: Window | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Rescale, crop, distort, flip and pad an image (3, h, w) uint8 with its label maps (H, W) to crop x crop.

    The image may have been read smaller than its label maps. The padding is grey in the image and 255 in label maps.
    The crop comes from the part `within` (in pixels of the label maps) where one is given.
    """
    with seeded(seed):
        full_height, full_width = labels[0].shape
        crop = _draw_crop((full_height, full_width), options, within)
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


def resized_labels(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """A whole label map (H, W) at another size, by nearest-exact resizing."""
    return _cut_labels(labels, Crop(size, 0, 0, *size, flip=False, side=max(size)), [0, 0, 0, 0])


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


@dataclass(frozen=True)
class TrainingExample:
    """What training sees of one image: S is the side of the crop, G the number of masks."""

    image: Tensor
    """(3, S, S) uint8."""
    labels: Tensor
    """(S, S) uint8 model labels: 0 background, k + 1 class k, 255 ignored or padded."""
    masks: Tensor
    """(G, S, S) bool."""
    classes: Tensor
    """(G,) index of each mask's class in learning order."""


def training_example(
    sample: Sample, lookup: np.ndarray, options: Augmentation, by_instance: bool, seed: int
) -> TrainingExample:
    """A sample, augmented and seen through a task's lookup from dataset ids to model labels (256,)."""
    image = _tensor(sample.image).permute(2, 0, 1)
    maps = [_tensor(sample.semantic)]
    if by_instance and sample.instances is not None:
        maps.append(_tensor(sample.instances))
    within = None
    if options.beside and _drawn_beside(options, seed):
        labelled = (lookup != 0) & (lookup != IGNORE)
        within = beside(labelled.take(sample.semantic))
    image, (semantic, *instances) = augment(image, maps, options, seed, within)
    # Only the crop goes through the lookup: the whole map of a photograph has ten times as many pixels.
    labels = torch.from_numpy(lookup.astype(np.uint8).take(semantic.numpy()))
    masks, indices = instance_targets(labels, instances[0]) if instances else semantic_targets(labels)
    return TrainingExample(image, labels, masks, indices)


def _drawn_beside(options: Augmentation, seed: int) -> bool:
    with seeded(seed ^ _BESIDE):
        return float(torch.rand(())) < options.beside


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values if values.flags.writeable else values.copy())
