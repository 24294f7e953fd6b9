"""Bilinear sampling as sums of table rows: what makes deformable attention fast on a CPU.

grid_sample works through one channel after the other. Here the channels of a pixel (of one head) are a row of a table,
and a query is a bag of the rows around its points, so that `embedding_bag` sums whole rows. The backward is of the
same kind: gradients of positions and weights are dot products of rows, and gradients of pixels are bags of the
queries' gradients, found by sorting the samples by pixel.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Shapes = tuple[tuple[int, int], ...]
"""(height, width) of every level."""


def sample_rows(values: Tensor, shapes: Shapes, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of bilinear samples, zero outside: (B, Q, heads * dh).

    values (B, S, heads, dh); x, y (B, Q, heads, levels, points) in pixels of the level, 0 is the centre of the first;
    weights alike. All of one floating type.
    """
    result: Tensor = _RowSampling.apply(values, shapes, x, y, weights)
    return result


class _RowSampling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, shapes: Shapes, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        batch, queries, heads, levels, points = x.shape
        layout = _Layout(shapes, heads, points)
        table = layout.fill(values).flatten(0, 2)  # (B * heads * rows, dh)
        samples = layout.locate(x, y, weights)
        below = samples.index + layout.strides(torch.int32)
        top_left, top_right, bottom_left, bottom_right = samples.corner_weights()
        bag = (-1, levels * points)
        total = _sum_rows(table, samples.index.view(bag), top_left.view(bag))
        # The right neighbour of a row is the next row, so a table that starts one row later serves the same index.
        total += _sum_rows(table[1:], samples.index.view(bag), top_right.view(bag))
        total += _sum_rows(table, below.view(bag), bottom_left.view(bag))
        total += _sum_rows(table[1:], below.view(bag), bottom_right.view(bag))
        ctx.save_for_backward(table, samples.index, samples.right, samples.down, samples.weight)
        ctx.layout, ctx.shape = layout, x.shape
        return total.view(batch, queries, -1)  # (B, Q, heads * dh)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        table, *parts = ctx.saved_tensors
        samples, layout = _Samples(*parts), ctx.layout
        gradient = gradient.reshape(-1, table.shape[1])  # (B * Q * heads, dh), one row per bag
        values_gradient = x_gradient = y_gradient = weights_gradient = None
        if ctx.needs_input_grad[0]:
            values_gradient = _values_gradient(samples, layout, gradient, len(table), ctx.shape)
        if any(ctx.needs_input_grad[2:]):
            x_gradient, y_gradient, weights_gradient = (
                part.view(ctx.shape) for part in _sample_gradients(samples, layout, gradient, table)
            )
        return values_gradient, None, x_gradient, y_gradient, weights_gradient


@dataclass(frozen=True)
class _Samples:
    """Every sample's place in the table; all (B, Q, heads * levels * points)."""

    index: Tensor
    """Row of the pixel at its top left, int32."""
    right: Tensor
    """How far it is from that pixel to the next column, 0..1."""
    down: Tensor
    """How far it is from that pixel to the next row, 0..1."""
    weight: Tensor

    def corner_weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights of the pixels at top left, top right, bottom left and bottom right."""
        bottom = self.weight * self.down
        top = self.weight - bottom
        top_right, bottom_right = top * self.right, bottom * self.right
        return top.sub_(top_right), top_right, bottom.sub_(bottom_right), bottom_right


@dataclass(frozen=True)
class _Layout:
    """Where pixels are in a table of rows that holds, image after image and head after head, all levels.

    Every level is framed by zeros so that no position is a special case: two columns left of each image row, which are
    also the two right of the row before, and two rows above and below. A far position is clamped into the frame, where
    all four neighbours are zero, and so are its sample and its gradient.
    """

    shapes: Shapes
    heads: int
    points: int

    @property
    def starts(self) -> list[int]:
        """First row of every level, and where the last one ends."""
        starts = [0]
        for height, width in self.shapes:
            starts.append(starts[-1] + (height + 4) * (width + 2))
        return starts

    @property
    def rows(self) -> int:
        """Rows of one head; the last image row has no next one whose zeros it can share."""
        return self.starts[-1] + 2

    def columns(self, per_level: Sequence[float], dtype: torch.dtype) -> Tensor:
        """One number per level, repeated for its samples: (heads * levels * points)."""
        return torch.tensor(per_level, dtype=dtype).repeat_interleave(self.points).repeat(self.heads)

    def strides(self, dtype: torch.dtype) -> Tensor:
        """How many table rows further down the pixel below is, for each sample."""
        return self.columns([width + 2 for _, width in self.shapes], dtype)

    def locate(self, x: Tensor, y: Tensor, weights: Tensor) -> _Samples:
        batch, heads = len(x), self.heads
        widths = self.columns([width for _, width in self.shapes], x.dtype)
        heights = self.columns([height for height, _ in self.shapes], x.dtype)
        right = torch.minimum(x.flatten(2), widths).contiguous().clamp_(min=-2)
        left_column = right.floor()
        right -= left_column
        down = torch.minimum(y.flatten(2), heights).contiguous().clamp_(min=-2)
        top_row = down.floor()
        down -= top_row
        # Exact in floating point: a level has less than 2 ** 24 pixels. The rest of the row number is added as integer.
        index = left_column.addcmul_(top_row, self.strides(x.dtype)).to(torch.int32)
        origins = [start + 2 * (width + 2) + 2 for start, (_, width) in zip(self.starts, self.shapes, strict=False)]
        tables = torch.arange(batch * heads, dtype=torch.int32).view(batch, heads, 1) * self.rows
        tables = tables.expand(-1, -1, len(self.shapes) * self.points).reshape(batch, 1, -1)
        index += tables + self.columns(origins, torch.int32)
        index.clamp_(min=0)  # a position that is not a number reads any row: its weight spreads the NaN
        return _Samples(index, right, down, weights.flatten(2).contiguous())

    def frames(self, table: Tensor) -> list[Tensor]:
        """Views (B, heads, h + 4, w + 2, dh) of the levels in a table (B, heads, rows, dh)."""
        return [
            table[:, :, start : start + (height + 4) * (width + 2)].unflatten(2, (height + 4, width + 2))
            for start, (height, width) in zip(self.starts, self.shapes, strict=False)
        ]

    def images(self, values: Tensor) -> list[Tensor]:
        """Views (B, heads, h, w, dh) of the levels in values (B, S, heads, dh)."""
        levels = values.split([height * width for height, width in self.shapes], dim=1)
        return [level.unflatten(1, shape).movedim(3, 1) for level, shape in zip(levels, self.shapes, strict=True)]

    def fill(self, values: Tensor) -> Tensor:
        """Values (B, S, heads, dh) as a table (B, heads, rows, dh)."""
        table = values.new_zeros(len(values), self.heads, self.rows, values.shape[-1])
        for frame, image in zip(self.frames(table), self.images(values), strict=True):
            frame[:, :, 2:-2, 2:] = image
        return table


def _sum_rows(table: Tensor, index: Tensor, weights: Tensor, offsets: Tensor | None = None) -> Tensor:
    """(bags, dh): weighted sums of table rows; a bag is a row of `index`, or starts where `offsets` says."""
    return F.embedding_bag(
        index, table, offsets, mode="sum", per_sample_weights=weights, include_last_offset=offsets is not None
    )


def _values_gradient(samples: _Samples, layout: _Layout, gradient: Tensor, rows: int, shape: Sequence[int]) -> Tensor:
    """(B, S, heads, dh): what all samples around a pixel pass on to it."""
    batch, _, heads, levels, points = shape
    index = samples.index.flatten()
    _, order = index.sort()
    offsets = F.pad(index.bincount(minlength=rows).cumsum(0), (1, 0)).to(torch.int32)
    bags = (order // (levels * points)).to(torch.int32)
    ordered = _Samples(
        index, *(part.flatten().index_select(0, order) for part in (samples.right, samples.down, samples.weight))
    )
    # Samples that share their top left pixel share all four, so one sorting serves the four neighbours.
    corners = [
        layout.frames(_sum_rows(gradient, bags, weights, offsets).view(batch, heads, layout.rows, -1))
        for weights in ordered.corner_weights()
    ]
    pixels = sum(height * width for height, width in layout.shapes)
    values_gradient = gradient.new_empty(batch, pixels, heads, gradient.shape[1])
    for image, top_left, top_right, bottom_left, bottom_right in zip(
        layout.images(values_gradient), *corners, strict=True
    ):
        torch.add(top_left[:, :, 2:-2, 2:], top_right[:, :, 2:-2, 1:-1], out=image)
        image += bottom_left[:, :, 1:-3, 2:]
        image += bottom_right[:, :, 1:-3, 1:-1]
    return values_gradient


def _sample_gradients(
    samples: _Samples, layout: _Layout, gradient: Tensor, table: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, y and the weights, from the dot products of the four pixels with the bag's gradient."""
    below = samples.index + layout.strides(torch.int32)
    top_left = _dot_rows(table, samples.index, gradient)
    top_right = _dot_rows(table[1:], samples.index, gradient)
    bottom_left = _dot_rows(table, below, gradient)
    bottom_right = _dot_rows(table[1:], below, gradient)
    top = torch.lerp(top_left, top_right, samples.right)
    bottom = torch.lerp(bottom_left, bottom_right, samples.right)
    weight_gradient = torch.lerp(top, bottom, samples.down)
    y_gradient = bottom.sub_(top).mul_(samples.weight)
    x_gradient = torch.lerp(top_right.sub_(top_left), bottom_right.sub_(bottom_left), samples.down)
    return x_gradient.mul_(samples.weight), y_gradient, weight_gradient


def _dot_rows(table: Tensor, index: Tensor, gradient: Tensor) -> Tensor:
    """Dot product of every sample's table row with the gradient of its bag, in the shape of `index`."""
    bags = len(gradient)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        samples = torch.sparse_csr_tensor(
            torch.arange(0, index.numel() + 1, index.numel() // bags, dtype=torch.int32),
            index.flatten(),
            gradient.new_zeros(index.numel()),
            size=(bags, len(table)),
            check_invariants=False,
        )
    return torch.sparse.sampled_addmm(samples, gradient, table.t(), beta=0.0).values().view(index.shape)
