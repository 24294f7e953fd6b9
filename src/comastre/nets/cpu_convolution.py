"""Convolutions that on a CPU take a way of their own: the same sums, in another order.

With one thread PyTorch leaves kernels of one pixel to an older way than oneDNN's, and their gradients are products of
matrices whose rows are pixels. And of a depthwise kernel wider than three pixels oneDNN finds the gradient up to ten
times slower than of its columns three by three.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Pair = tuple[int, int]
_NARROW = 3


def convolve(
    maps: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """`F.conv2d`, by whichever way is fastest for these maps (B, c, h, w)."""
    if not _in_full_precision(maps) or not maps.is_contiguous(memory_format=torch.channels_last):
        return F.conv2d(maps, weight, bias, stride, padding, dilation, groups)
    if weight.shape[2:] == (1, 1) and stride == (1, 1) and padding == (0, 0) and groups == 1:
        if torch.is_grad_enabled():
            return _Pointwise.apply(maps, weight, bias)
        return torch.ops.aten.mkldnn_convolution(maps, weight, bias, (0, 0), (1, 1), (1, 1), 1)
    one_by_one = groups == maps.shape[1] == weight.shape[0]
    if one_by_one and weight.requires_grad and dilation == (1, 1) and _NARROW < weight.shape[3] < 2 * _NARROW:
        return _Depthwise.apply(maps, weight, bias, stride, padding)
    return F.conv2d(maps, weight, bias, stride, padding, dilation, groups)


def _in_full_precision(maps: Tensor) -> bool:
    """Not where autocast chooses a type, nor where a graph of plain operations is wanted."""
    return (
        maps.device.type == "cpu"
        and maps.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
        and not torch.compiler.is_compiling()
    )


def _as_rows(maps: Tensor) -> Tensor:
    """(B * h * w, c): a view of maps (B, c, h, w) whose channels are neighbours."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


class _Pointwise(Function):
    """A 1 x 1 convolution, whose gradients are products of matrices."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(maps, weight)
        return torch.ops.aten.mkldnn_convolution(maps, weight, bias, (0, 0), (1, 1), (1, 1), 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight = ctx.saved_tensors
        rows = _as_rows(gradient)  # (B * h * w, c_out)
        of_maps = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_maps = torch.empty_like(maps, memory_format=torch.channels_last)
            torch.mm(rows, weight.flatten(1), out=_as_rows(of_maps))
        if ctx.needs_input_grad[1]:
            of_weight = (rows.t() @ _as_rows(maps)).view_as(weight)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_maps, of_weight, of_bias


class _Depthwise(Function):
    """A convolution of every channel with a kernel of its own, 4 or 5 pixels wide."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(maps, weight, bias, stride, padding, 1, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        of_maps = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_maps = _backward(gradient, maps, weight, ctx.stride, ctx.padding, 0)
        if ctx.needs_input_grad[1]:
            of_weight = _of_kernel(gradient, maps, weight, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[2]:
            of_bias = _as_rows(gradient).sum(0)
        return of_maps, of_weight, of_bias, None, None


def _of_kernel(gradient: Tensor, maps: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The gradient of a depthwise kernel (c, 1, kh, kw): that of its first three columns and of its last three."""
    width = weight.shape[3]
    wide = F.pad(maps, (padding[1], padding[1])) if padding[1] else maps
    seen = (gradient.shape[3] - 1) * stride[1] + _NARROW  # columns that a kernel of three meets on its way
    parts = []
    for first in (0, width - _NARROW):
        columns = wide[..., first : first + seen].contiguous(memory_format=torch.channels_last)
        narrow = weight[..., :_NARROW]
        parts.append(_backward(gradient, columns, narrow, stride, (padding[0], 0), 1))
    first_columns, last_columns = parts
    return torch.cat((first_columns, last_columns[..., 2 * _NARROW - width :]), dim=3)


def _backward(gradient: Tensor, maps: Tensor, weight: Tensor, stride: Pair, padding: Pair, of: int) -> Tensor:
    """One gradient of a depthwise convolution: of its maps (0) or its kernel (1)."""
    wanted = [each == of for each in range(3)]
    found: Tensor = torch.ops.aten.convolution_backward(
        gradient, maps, weight, None, stride, padding, (1, 1), False, (0, 0), len(weight), wanted
    )[of]
    return found
