"""Convolutions that on a CPU take a way of their own: the same sums, in another order.

With one thread PyTorch leaves kernels of one pixel to an older way than oneDNN's, and their gradients are products of
matrices whose rows are pixels. Of a depthwise kernel wider than three pixels oneDNN finds the gradient up to ten times
slower than of its columns three by three, and a dilated one's gradients up to fifty times slower than others: that of
the maps is a convolution again, and that of the kernel is found on maps of every second (third, ..) pixel.
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
    if one_by_one and weight.requires_grad and _has_slow_gradients(weight, stride, padding, dilation):
        return _Depthwise.apply(maps, weight, bias, stride, padding, dilation)
    return F.conv2d(maps, weight, bias, stride, padding, dilation, groups)


def _has_slow_gradients(weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> bool:
    """Of a depthwise convolution in oneDNN, and in a form that `_Depthwise` knows."""
    width = weight.shape[3]
    slow = width > _NARROW if dilation == (1, 1) else stride == (1, 1)
    sides = zip(padding, weight.shape[2:], dilation, strict=True)
    usual = all(pad % step == 0 and pad <= step * (side - 1) for pad, side, step in sides)
    return slow and usual and width < 2 * _NARROW


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
    """A convolution of every channel with a kernel of its own, at most 5 pixels wide; a dilated one has stride 1."""

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
    ) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.stride, ctx.padding, ctx.dilation = stride, padding, dilation
        return F.conv2d(maps, weight, bias, stride, padding, dilation, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        of_maps = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_maps = _of_maps(gradient, maps, weight, ctx.stride, ctx.padding, ctx.dilation)
        if ctx.needs_input_grad[1]:
            padding = ctx.padding
            if ctx.dilation != (1, 1):
                maps, gradient, padding = _undilated(gradient, maps, weight, padding, ctx.dilation)
            of_weight = _of_kernel(gradient, maps, weight, ctx.stride, padding)
        if ctx.needs_input_grad[2]:
            of_bias = _as_rows(gradient).sum(0)
        return of_maps, of_weight, of_bias, None, None, None


def _of_maps(gradient: Tensor, maps: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """The gradient of a depthwise convolution's maps: at stride 1 it is their convolution with the turned kernel."""
    if stride != (1, 1):
        return _backward(gradient, maps, weight, stride, padding, 0)
    reach = [step * (side - 1) - pad for step, side, pad in zip(dilation, weight.shape[2:], padding, strict=True)]
    return F.conv2d(gradient, weight.flip(2, 3), None, 1, reach, dilation, len(weight))


def _undilated(
    gradient: Tensor, maps: Tensor, weight: Tensor, padding: Pair, dilation: Pair
) -> tuple[Tensor, Tensor, Pair]:
    """Maps, gradient and padding of a convolution without dilation whose kernel has the same gradient.

    Its maps are those of every `dilation`-th pixel, all of them behind each other as images of one batch.
    """
    height, width = (-(-side // step) for side, step in zip(maps.shape[2:], dilation, strict=True))
    inner = (padding[0] // dilation[0], padding[1] // dilation[1])
    outcome = (height + 2 * inner[0] - weight.shape[2] + 1, width + 2 * inner[1] - weight.shape[3] + 1)
    return _every(maps, dilation, (height, width)), _every(gradient, dilation, outcome), inner


def _every(maps: Tensor, steps: Pair, sides: Pair) -> Tensor:
    """Maps (B, c, h, w) -> (steps * B, c, sides): of every so many pixels, with 0 behind the maps' ends."""
    across, down = steps[1] * sides[1] - maps.shape[3], steps[0] * sides[0] - maps.shape[2]
    if across or down:
        maps = F.pad(maps, (0, across, 0, down))
    pixels = maps.permute(0, 2, 3, 1).unflatten(2, (sides[1], steps[1])).unflatten(1, (sides[0], steps[0]))
    return pixels.permute(2, 4, 0, 1, 3, 5).flatten(0, 2).permute(0, 3, 1, 2)  # pixels: (B, h, down, w, across, c)


def _of_kernel(gradient: Tensor, maps: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The gradient of a depthwise kernel (c, 1, kh, kw): that of its first three columns and of its last three."""
    width = weight.shape[3]
    if width <= _NARROW:
        return _backward(gradient, maps, weight, stride, padding, 1)
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
