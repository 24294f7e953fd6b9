"""Whole images as a model is shown them: resized to the size of its view and padded to a multiple of 32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

from comastre.config.view import padded_size

Size = tuple[int, int]


def shown(images: Sequence[Tensor], sizes: Sequence[Size]) -> tuple[Tensor, Tensor | None]:
    """Images (3, h, w) uint8 as (B, 3, H, W) at sizes that pad alike, and where they are padded (B, H, W) or None."""
    height, width = padded_size(*sizes[0])
    batch = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
    padding = torch.ones(len(images), height, width, dtype=torch.bool)
    for row, (image, size) in enumerate(zip(images, sizes, strict=True)):
        batch[row, :, : size[0], : size[1]] = _resized(image, size)
        padding[row, : size[0], : size[1]] = False
    return batch, padding if bool(padding.any()) else None


def _resized(image: Tensor, size: Size) -> Tensor:
    """As training resizes: bilinear, and smoothed where it becomes smaller."""
    if tuple(image.shape[-2:]) == size:
        return image
    resized: Tensor = functional.resize(image, list(size), interpolation=InterpolationMode.BILINEAR, antialias=True)
    return resized
