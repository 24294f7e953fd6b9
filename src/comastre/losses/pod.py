"""Pooled-outputs distillation (PLOP): feature maps may change, but not their means over rows and columns of windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from comastre.nets.precision import upcast

SCALES = (1, 2, 4)
"""A map is cut into 1, 4 and 16 windows."""


def pooled(maps: Tensor, scales: Sequence[int] = SCALES) -> Tensor:
    """(B, M): for every scale s, the means over rows, then over columns, of s x s windows of maps (B, c, h, w).

    What does not fill a window at the right and below is left out, as is a scale whose windows would be empty. PLOP's
    code takes the width for both sides of a window; maps of training are square.
    """
    batch, channels, height, width = maps.shape
    parts = []
    for scale in scales:
        rows, columns = height // scale, width // scale
        if rows == 0 or columns == 0:
            continue
        cut = maps[:, :, : scale * rows, : scale * columns]
        windows = cut.reshape(batch, channels, scale, rows, scale, columns)
        parts += [windows.mean(dim=5).flatten(1), windows.mean(dim=3).flatten(1)]
    return torch.cat(parts, dim=1)


def pod_distance(maps: Tensor, old_maps: Tensor, scales: Sequence[int] = SCALES, squared: bool = False) -> Tensor:
    """(B,): length of the difference of the pooled maps (B, c, h, w); with `squared`, of those of their squares."""
    maps, old_maps = upcast(maps), upcast(old_maps.detach())
    if squared:
        maps, old_maps = maps.square(), old_maps.square()
    difference = pooled(maps, scales) - pooled(old_maps, scales)
    # The length of nothing has no gradient; where nothing has changed there is none to pass on.
    return torch.sqrt(difference.square().sum(-1).clamp(min=1e-24))


def without_padding(maps: Tensor, padding: Tensor | None) -> Tensor:
    """Maps (B, c, h, w) with zeros in the padding (B, h, w)."""
    return maps if padding is None else maps.masked_fill(padding[:, None], 0.0)


def fold_logits(logits: Tensor, num_old: int) -> Tensor:
    """Logits (B, K, h, w) as the old model has them, (B, num_old, h, w): new classes are added to the background."""
    background = logits[:, :1] + logits[:, num_old:].sum(dim=1, keepdim=True)
    return torch.cat([background, logits[:, 1:num_old]], dim=1)


def growth(num_classes: int, num_new: int) -> float:
    """How much more is to be kept the more is known: the root of all classes, background included, per new one."""
    return math.sqrt(num_classes / num_new)
