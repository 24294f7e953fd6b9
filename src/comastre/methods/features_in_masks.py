"""What a mask looks like: the mean pixel embedding inside it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.nets.outputs import PixelEmbeddings

LEVELS = 2
"""How many levels of the pixel embeddings are read."""


def first_level(class_decoder_stride: int) -> int:
    """The coarsest level that is read: stride 32, or 16 where stage 2 itself reads stride 8, for small images."""
    return 1 if class_decoder_stride == 8 else 0


def features_of(pixels: PixelEmbeddings, masks: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Mean pixel embeddings inside masks (B, N, h, w) bool: (B, N, D), and which masks have any inside (B, N).

    `first` is the coarsest level that is read.
    """
    levels, paddings = pixels.levels[first : first + LEVELS], pixels.padding[first : first + LEVELS]
    inside = masks.float()
    if not masks.shape[1]:  # resizing no mask at all is an error in torch
        width = sum(level.shape[1] for level in levels)
        return inside.new_zeros(*masks.shape[:2], width), masks.new_zeros(masks.shape[:2])
    means, filled = [], []
    for level, padding in zip(levels, paddings, strict=True):
        size = (level.shape[-2], level.shape[-1])
        shares = F.interpolate(inside, size=size, mode="area")  # how much of each cell is inside
        if padding is not None:
            shares = shares.masked_fill(padding[:, None], 0.0)
        total = shares.flatten(2).sum(dim=2)  # (B, N)
        sums = torch.einsum("bnhw, bchw -> bnc", shares, level.float())
        means.append(sums / total.clamp(min=1e-6)[..., None])
        filled.append(total > 0)
    return torch.cat(means, dim=-1), torch.stack(filled).all(dim=0)
