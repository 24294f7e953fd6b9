"""Pooled-outputs distillation (PLOP): feature maps may change, but not their means over rows and columns of windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comastre.nets.precision import upcast

SCALES = (1, 2, 4)
"""A map is cut into 1, 4 and 16 windows."""


def pooled(maps: Tensor, scales: Sequence[int] = SCALES) -> Tensor:
    """(B, M): means over the rows and columns of every window of maps (B, c, h, w), one after the other.

    As in PLOP's code a window's side is that of the width, for both directions.
    """
    parts = []
    for scale in scales:
        side = maps.shape[-1] // scale
        for row in range(scale):
            for column in range(scale):
                window = maps[..., row * side : (row + 1) * side, column * side : (column + 1) * side]
                # A map that is higher than wide ends before the last windows do.
                if window.shape[-1] and window.shape[-2]:
                    parts += [window.mean(-1).flatten(1), window.mean(-2).flatten(1)]
    return torch.cat(parts, dim=1)


def pod_distance(maps: Tensor, old_maps: Tensor, scales: Sequence[int] = SCALES, squared: bool = False) -> Tensor:
    """(B,): length of the difference of the pooled maps (B, c, h, w); with `squared`, of those of their squares."""
    maps, old_maps = upcast(maps), upcast(old_maps.detach())
    if squared:
        maps, old_maps = maps.square(), old_maps.square()
    difference = pooled(maps, scales) - pooled(old_maps, scales)
    # The length of nothing has no gradient; where nothing has changed there is none to pass on.
    return torch.sqrt(difference.square().sum(-1).clamp(min=1e-24))
