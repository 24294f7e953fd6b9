"""What a mask looks like: the mean pixel embedding inside it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.nets.outputs import PixelEmbeddings

LEVELS = 2
"""Of the pixel embeddings, those of strides 32 and 16 are read (docs/experiments.md, Exact guarantee)."""


def features_of(pixels: PixelEmbeddings, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Mean pixel embeddings inside masks (B, N, h, w) bool: (B, N, D), and which masks have any inside (B, N)."""
    inside = masks.float()
    if not masks.shape[1]:  # resizing no mask at all is an error in torch
        width = sum(level.shape[1] for level in pixels.levels[:LEVELS])
        return inside.new_zeros(*masks.shape[:2], width), masks.new_zeros(masks.shape[:2])
    means, filled = [], []
    for level, padding in list(zip(pixels.levels, pixels.padding, strict=True))[:LEVELS]:
        size = (level.shape[-2], level.shape[-1])
        shares = F.interpolate(inside, size=size, mode="area")  # how much of each cell is inside
        if padding is not None:
            shares = shares.masked_fill(padding[:, None], 0.0)
        total = shares.flatten(2).sum(dim=2)  # (B, N)
        sums = torch.einsum("bnhw, bchw -> bnc", shares, level.float())
        means.append(sums / total.clamp(min=1e-6)[..., None])
        filled.append(total > 0)
    return torch.cat(means, dim=-1), torch.stack(filled).all(dim=0)
