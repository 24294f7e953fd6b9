"""Sine position embeddings of pixel grids."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_TEMPERATURE = 10000.0


def sine_positions(size: tuple[int, int], dim: int, device: torch.device, padding: Tensor | None = None) -> Tensor:
    """(1 or B, h * w, dim): rows and columns scaled to one turn over the real part of the grid, y before x.

    `padding` (B, h, w) is true where an image has no pixels, so that a padded image gets the positions it has alone.
    """
    if padding is None:
        return _whole_grid(size, dim, device)
    real = (~padding).float()
    return _encode(real.cumsum(1), real.cumsum(2), dim)


# Three decoders ask for the same few grids in every batch, and sines are slow.
@lru_cache(maxsize=64)
def _whole_grid(size: tuple[int, int], dim: int, device: torch.device) -> Tensor:
    height, width = size
    # An inference tensor in the cache would be refused by a later training step.
    with torch.inference_mode(False), torch.no_grad():
        rows = torch.arange(1, height + 1, device=device, dtype=torch.float32)[None, :, None].expand(1, height, width)
        columns = torch.arange(1, width + 1, device=device, dtype=torch.float32)[None, None].expand(1, height, width)
        return _encode(rows, columns, dim)


def _encode(rows: Tensor, columns: Tensor, dim: int) -> Tensor:
    """(B, h * w, dim) of 1-based coordinates (B, h, w), the largest of which is the grid's size."""
    epsilon = 1e-6
    rows = rows / (rows[:, -1:] + epsilon) * (2 * math.pi)
    columns = columns / (columns[:, :, -1:] + epsilon) * (2 * math.pi)
    half = dim // 2
    index = torch.arange(half, device=rows.device, dtype=torch.float32)
    wavelength = _TEMPERATURE ** (2 * torch.div(index, 2, rounding_mode="floor") / half)

    def encode(coordinate: Tensor) -> Tensor:
        angle = coordinate.flatten(1)[..., None] / wavelength  # (B, h * w, half)
        return torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=-1).flatten(-2)

    return torch.cat((encode(rows), encode(columns)), dim=-1)
