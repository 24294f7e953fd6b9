"""Multi-scale deformable attention (Deformable DETR): every query reads a few points of every level."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comastre.nets.precision import upcast
from comastre.nets.row_sampling import sample_rows

Shapes = Sequence[tuple[int, int]]
"""(height, width) of every level."""


def sample_and_sum(values: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of bilinear samples of all levels, zero outside: (B, Q, heads * dh).

    values (B, S, heads, dh) with S = sum of h * w over `shapes`; locations (B, Q, heads, levels, points, 2) as x, y
    with the image in [0, 1]; weights (B, Q, heads, levels, points).
    """
    sizes = locations.new_tensor([(width, height) for height, width in shapes])
    x, y = (locations * sizes[:, None] - 0.5).unbind(-1)
    return _sample_pixels(values, shapes, x, y, weights)


def _sample_pixels(values: Tensor, shapes: Shapes, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """`sample_and_sum` at x, y (B, Q, heads, levels, points) in pixels of the level, 0 at the centre of the first."""
    # A half-precision position would be off by a good part of a pixel.
    precision = torch.promote_types(values.dtype, torch.float32)
    arguments = (values.to(precision), tuple(shapes), x.to(precision), y.to(precision), weights.to(precision))
    with torch.autocast(values.device.type, enabled=False):
        # Accelerators have a fast grid_sample; on a CPU sums of rows take a tenth of its time.
        sampled = sample_rows(*arguments) if values.device.type == "cpu" else sample_grids(*arguments)
    return sampled.to(values.dtype)


def sample_grids(values: Tensor, shapes: Shapes, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """What `sample_rows` computes, by grid_sample."""
    batch, _, heads, _ = values.shape
    total = values.new_zeros(())
    for level, (pixels, (height, width)) in enumerate(
        zip(values.split([height * width for height, width in shapes], dim=1), shapes, strict=True)
    ):
        image = pixels.permute(0, 2, 3, 1).flatten(0, 1).unflatten(-1, (height, width))  # (B * heads, dh, h, w)
        grid = torch.stack(((2 * x[..., level, :] + 1) / width - 1, (2 * y[..., level, :] + 1) / height - 1), dim=-1)
        grid = grid.transpose(1, 2).flatten(0, 1)  # (B * heads, Q, points, 2)
        samples = F.grid_sample(image, grid, align_corners=False)  # (B * heads, dh, Q, points)
        weight = weights[..., level, :].transpose(1, 2).flatten(0, 1)  # (B * heads, Q, points)
        total = total + torch.einsum("ndqp, nqp -> nqd", samples, weight)
    return total.unflatten(0, (batch, heads)).transpose(1, 2).flatten(2)  # (B, Q, heads * dh)


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

    def origins(self, reference: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
        """What offsets are added to: x and y (Q, heads * levels * points) in pixels of the level that is read.

        reference (Q, 2) as x, y in [0, 1]. Layers of the same shape share it.
        """
        sizes = reference.new_tensor([(width, height) for height, width in shapes])  # (levels, 2)
        pixels = reference[:, None] * sizes - 0.5  # (Q, levels, 2)
        x, y = pixels.repeat_interleave(self.points, dim=1).repeat(1, self.heads, 1).unbind(-1)
        return x.contiguous(), y.contiguous()

    def forward(
        self,
        queries: Tensor,
        source: Tensor,
        origins: tuple[Tensor, Tensor],
        shapes: Shapes,
        padding: Tensor | None = None,
    ) -> Tensor:
        """queries (B, Q, d) with positions added, source (B, S, d) -> (B, Q, d).

        padding (B, S) is true where the source is only padding, which reads as zero.
        """
        values = self.value_projection(source)
        if padding is not None:
            values = values.masked_fill(padding[..., None], 0.0)
        samples = (self.heads, self.levels, self.points)
        # One product for all that is read off a query; x and y apart, since what follows is fast on separate planes.
        offsets, attention = self.sampling_offsets, self.attention_weights
        weight = torch.cat((offsets.weight[0::2], offsets.weight[1::2], attention.weight))
        bias = torch.cat((offsets.bias[0::2], offsets.bias[1::2], attention.bias))
        right, down, logits = F.linear(queries, weight, bias).chunk(3, dim=-1)  # (B, Q, heads * levels * points) each
        weights = _softmax_of_few(logits.unflatten(-1, (self.heads, -1))).unflatten(-1, samples[1:])
        x, y = ((offset + origin).unflatten(-1, samples) for offset, origin in zip((right, down), origins, strict=True))
        sampled = _sample_pixels(values.unflatten(-1, (self.heads, -1)), shapes, x, y, weights)
        return self.output_projection(sampled)


def _softmax_of_few(logits: Tensor) -> Tensor:
    """Softmax over the last axis, which is short."""
    if logits.device.type != "cpu":
        return logits.softmax(dim=-1)
    # PyTorch's own takes a call per row, which is most of its time where rows are short.
    logits = upcast(logits)
    powers = (logits - logits.detach().amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)
