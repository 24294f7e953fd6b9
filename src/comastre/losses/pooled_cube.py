"""Pooled cube distillation (RCIL): squared maps, compared by means over neighbours in space and over channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.nets.precision import upcast


def spatial_cube(maps: Tensor, old_maps: Tensor, kernels: Sequence[int]) -> Tensor:
    """(B,): length of the difference of the squared maps (B, c, h, w) after average pooling, mean over kernels.

    Windows move by one and reach half of the kernel over the border, where there are zeros.
    """
    difference = _difference(maps, old_maps)
    lengths = [
        torch.linalg.vector_norm(F.avg_pool2d(difference, kernel, stride=1, padding=kernel // 2).flatten(1), dim=1)
        for kernel in kernels
    ]
    return torch.stack(lengths).mean(dim=0)


def channel_cube(maps: Tensor, old_maps: Tensor, kernel: int) -> Tensor:
    """(B,): the same after average pooling over neighbouring channels."""
    lines = _difference(maps, old_maps).flatten(2).movedim(1, 2)  # (B, h w, c)
    pooled = F.avg_pool1d(lines, kernel, stride=1, padding=kernel // 2)
    return torch.linalg.vector_norm(pooled.flatten(1), dim=1)


def _difference(maps: Tensor, old_maps: Tensor) -> Tensor:
    """Of the squares, in full precision; pooling is linear, so it is pooled once."""
    return upcast(maps).square() - upcast(old_maps.detach()).square()
