"""Multi-scale deformable attention (Deformable DETR): every query reads a few points of every level."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shapes = Sequence[tuple[int, int]]


def sample_and_sum(values: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of bilinear samples of all levels, zero outside: (B, Q, heads * dh).

    values (B, S, heads, dh) with S = sum of h * w over `shapes`; locations (B, Q, heads, levels, points, 2) as x, y
    with the image in [0, 1]; weights (B, Q, heads, levels, points).
    """
    batch, _, heads, _ = values.shape
    queries = locations.shape[1]
    grids = 2 * locations - 1
    total = values.new_zeros(())
    for level, (rows, (height, width)) in enumerate(
        zip(values.split([height * width for height, width in shapes], dim=1), shapes, strict=True)
    ):
        image = rows.permute(0, 2, 3, 1).flatten(0, 1).unflatten(-1, (height, width))  # (B * heads, dh, h, w)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)  # (B * heads, Q, points, 2)
        samples = F.grid_sample(image, grid, align_corners=False)  # (B * heads, dh, Q, points)
        weight = weights[:, :, :, level].transpose(1, 2).flatten(0, 1)  # (B * heads, Q, points)
        total = total + torch.einsum("ndqp, nqp -> ndq", samples, weight)
    return total.unflatten(0, (batch, heads)).permute(0, 3, 1, 2).reshape(batch, queries, -1)


class DeformableAttention(nn.Module):
    """Self-attention of all pixels of all levels in which each query chooses where it reads."""

    def __init__(self, dim: int, heads: int, levels: int, points: int) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.value_projection = nn.Linear(dim, dim)
        self.sampling_offsets = nn.Linear(dim, heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, heads * levels * points)
        self.output_projection = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as Deformable DETR does: head i reads 1, 2, ... pixels away in its own direction, all points alike."""
        angles = torch.arange(self.heads) * (2 * math.pi / self.heads)
        directions = torch.stack((angles.cos(), angles.sin()), dim=-1)
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)  # on the unit square, not the circle
        steps = torch.arange(1, self.points + 1)
        offsets = directions[:, None, None] * steps[:, None]  # (heads, 1, points, 2)
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(offsets.expand(-1, self.levels, -1, -1).flatten())
        nn.init.zeros_(self.sampling_offsets.weight)
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for projection in (self.value_projection, self.output_projection):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(
        self, queries: Tensor, source: Tensor, reference: Tensor, shapes: Shapes, padding: Tensor | None = None
    ) -> Tensor:
        """queries (B, Q, d) with positions added, source (B, S, d), reference (Q, 2) as x, y in [0, 1] -> (B, Q, d).

        padding (B, S) is true where the source is only padding, which reads as zero.
        """
        split = (self.heads, self.levels, self.points)
        values = self.value_projection(source)
        if padding is not None:
            values = values.masked_fill(padding[..., None], 0.0)
        offsets = self.sampling_offsets(queries).unflatten(-1, (*split, 2)).float()  # in pixels of the sampled level
        weights = (
            self.attention_weights(queries).unflatten(-1, (self.heads, -1)).softmax(dim=-1).unflatten(-1, split[1:])
        )
        sizes = torch.tensor([(width, height) for height, width in shapes], device=queries.device)
        locations = reference[:, None, None, None] + offsets / sizes[:, None]  # (B, Q, heads, levels, points, 2)
        with torch.autocast(queries.device.type, enabled=False):
            sampled = sample_and_sum(values.unflatten(-1, (self.heads, -1)).float(), shapes, locations, weights.float())
        return self.output_projection(sampled)
