"""Random points on masks: where matching and mask losses look (PointRend's sampling, as Mask2Former uses it).

Points are (x, y) in [0, 1]. They are drawn per image, shared by its masks, and handed to pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.config.sections import MaskLossConfig
from comastre.nets.precision import upcast


def _interpolate(maps: Tensor, points: Tensor) -> Tensor:
    """Bilinear values (B, C, P) of maps (B, C, h, w) at points (B, P, 2)."""
    maps = upcast(maps) if maps.is_floating_point() else maps.to(upcast(points).dtype)
    grid = (2 * points.to(maps.dtype) - 1)[:, :, None]  # (B, P, 1, 2)
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="zeros", align_corners=False)[..., 0]


def sample_at(maps: Tensor, points: Tensor) -> Tensor:
    """Values (B, G, P) of maps (B, G, h, w), float or bool, at the points (B, P, 2) that an image's maps share."""
    return _interpolate(maps, points)


def sample_each(maps: Tensor, points: Tensor) -> Tensor:
    """Values (B, G, P) of maps (B, G, h, w), float or bool, at every map's own points (B, G, P, 2)."""
    return _interpolate(maps.flatten(0, 1)[:, None], points.flatten(0, 1)).reshape(points.shape[:3])


@dataclass(frozen=True)
class PointCounts:
    """How many points of which kind a mask loss takes."""

    candidates: int
    """Drawn per image; the most uncertain of them are kept, for every mask its own."""
    important: int
    """Kept per mask."""
    uniform: int
    """Drawn per image and kept as they are."""

    @classmethod
    def of(cls, config: MaskLossConfig) -> PointCounts:
        important = int(config.importance * config.points)
        # Candidates are drawn only to choose the important points from them.
        candidates = int(config.oversample * config.points) if important else 0
        return cls(candidates, important, config.points - important)


@torch.no_grad()
def uncertain_points(logits: Tensor, candidates: Tensor, uniform: Tensor, num_important: int) -> Tensor:
    """Points (B, G, P, 2) per mask: its `num_important` most uncertain candidates, then the uniform points.

    `logits` (B, G, h, w); `candidates` (B, C, 2) and `uniform` (B, U, 2) are shared by an image's masks; P is
    `num_important` + U. A point is uncertain where the logit is near 0.
    """
    num_masks = logits.shape[1]
    shared = uniform[:, None].expand(-1, num_masks, -1, -1)  # (B, G, U, 2)
    if num_important == 0:
        return shared
    certainty = sample_at(logits, candidates).abs()  # (B, G, C)
    chosen = certainty.topk(num_important, dim=-1, largest=False, sorted=False).indices  # (B, G, I)
    own = candidates[:, None].expand(-1, num_masks, -1, -1).gather(2, chosen[..., None].expand(-1, -1, -1, 2))
    return torch.cat([own, shared.to(own.dtype)], dim=2)


class PointSource:
    """Random points of one iteration that depend on an image's place in the global batch, not on how it is split.

    Every process and every accumulated part draws for the whole batch and keeps its `rows`, so the same image gets the
    same points in one process, in many, and with gradient accumulation.
    """

    def __init__(self, seed: int, iteration: int, rows: slice, global_batch: int, device: torch.device | str) -> None:
        # SeedSequence mixes both numbers: seed 1, iteration 2 is unrelated to seed 2, iteration 1. It takes none < 0.
        mixed = np.random.SeedSequence([seed & (2**64 - 1), iteration]).generate_state(1, np.uint64)[0]
        self._generator = torch.Generator(device=device).manual_seed(int(mixed) >> 1)
        self._rows = rows
        self._global_batch = global_batch

    def draw_shared(self, count: int) -> Tensor:
        """The next numbers (count,), uniform in [0, 1), that all images of the iteration share."""
        return torch.rand(count, generator=self._generator, device=self._generator.device)

    def draw(self, num_points: int) -> Tensor:
        """The next points (rows, num_points, 2), uniform in [0, 1)."""
        shape = (self._global_batch, num_points, 2)
        return torch.rand(shape, generator=self._generator, device=self._generator.device)[self._rows]
