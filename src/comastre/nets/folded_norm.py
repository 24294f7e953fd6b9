"""Convolutions that do the work of the BatchNorm behind them, on a CPU and while its statistics stand still.

It is then a factor and a summand per channel: in the kernel and the bias they cost nothing per pixel. Results and
gradients are the same but for rounding, and parameters keep their places and names.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import BatchNormAct2d
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.padding import pad_same
from torch import Tensor, nn

from comastre.nets.cpu_convolution import convolve
from comastre.nets.made_again import made_again
from comastre.nets.still_batch_norm import StillBatchNorm2d, StillBatchNormAct2d

_CONVOLUTIONS = (nn.Conv2d, Conv2dSame)
_NORMS = (nn.BatchNorm2d, BatchNormAct2d, StillBatchNorm2d, StillBatchNormAct2d)


def fold_norms(network: nn.Module, images: Tensor) -> None:
    """Let every convolution that a BatchNorm follows do the work of both.

    Which ones those are shows when the network, which gives a list of features, sees the images (B, 3, H, W).
    """
    if any(parameter.is_meta for parameter in network.parameters()):  # shapes only
        return
    for convolution, norm in _pairs(network, images):
        pair = FoldedPair(convolution, norm)
        convolution.forward = pair.convolve  # type: ignore[method-assign, assignment]
        norm.forward = pair.finish  # type: ignore[method-assign, assignment]


def unfold_norms(network: nn.Module) -> None:
    """Let every layer do its own work again, before layers are exchanged."""
    for module in network.modules():
        if isinstance(getattr(module.__dict__.get("forward"), "__self__", None), FoldedPair):
            del module.forward


class FoldedPair:
    """A convolution and the BatchNorm that alone reads its result."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        self.convolution = convolution
        self.norm = norm

    def convolve(self, maps: Tensor) -> Tensor:
        """In place of the convolution's own pass."""
        layer = self.convolution
        if not self._folds(maps):
            return type(layer).forward(layer, maps)
        weight, bias = with_norm(layer, self.norm)
        assert not isinstance(layer.padding, str)
        if isinstance(layer, Conv2dSame):
            maps = pad_same(maps, list(layer.kernel_size), list(layer.stride), list(layer.dilation))
        norm = self.norm
        assert norm.running_var is not None
        with made_again(weight, partial(_scaled, epsilon=norm.eps), layer.weight, norm.weight, norm.running_var):
            return convolve(maps, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)  # type: ignore[arg-type]

    def finish(self, maps: Tensor) -> Tensor:
        """In place of the norm's own pass: the activation, where timm has put one into it."""
        norm = self.norm
        if not self._folds(maps):
            return type(norm).forward(norm, maps)
        if not isinstance(norm, BatchNormAct2d):
            return maps
        out: Tensor = norm.act(norm.drop(maps))
        return out

    def _folds(self, maps: Tensor) -> bool:
        """The same before and behind the convolution; weights of half precision would lose too much."""
        if maps.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return False
        return not self.norm.training and self.convolution.weight.dtype == torch.float32


def with_norm(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a convolution with the BatchNorm behind it, whose statistics stand still."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = _scale(norm.weight, norm.running_var, norm.eps)
    bias = norm.bias - norm.running_mean * scale
    if convolution.bias is not None:
        bias = bias + scale * convolution.bias
    return convolution.weight * scale.view(-1, 1, 1, 1), bias


def _scale(weight: Tensor, variance: Tensor, epsilon: float) -> Tensor:
    return weight * (variance + epsilon).rsqrt()


def _scaled(kernel: Tensor, weight: Tensor, variance: Tensor, epsilon: float) -> Tensor:
    """The kernel of `with_norm` alone."""
    return kernel * _scale(weight, variance, epsilon).view(-1, 1, 1, 1)


def _pairs(network: nn.Module, images: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Convolutions, each with the BatchNorm that was given the very tensor which the convolution gave."""
    convolutions = [module for module in network.modules() if type(module) in _CONVOLUTIONS]
    norms = [module for module in network.modules() if type(module) in _NORMS and _is_plain(module)]
    made: dict[nn.Module, Tensor] = {}
    read: dict[nn.Module, Tensor] = {}

    def remember_made(module: nn.Module, given: Any, result: Tensor) -> None:
        made[module] = result

    def remember_read(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        read[module] = given[0]

    hooks = [module.register_forward_hook(remember_made) for module in convolutions]
    hooks += [module.register_forward_pre_hook(remember_read) for module in norms]
    was_training = network.training
    with torch.no_grad():
        features = network.eval()(images)
    network.train(was_training)
    for hook in hooks:
        hook.remove()
    taken = {id(feature) for feature in features}
    by_result = {id(result): module for module, result in made.items() if id(result) not in taken}
    found = [(by_result.get(id(given)), norm) for norm, given in read.items()]
    return [(convolution, norm) for convolution, norm in found if convolution is not None]  # type: ignore[misc]


def _is_plain(norm: nn.Module) -> bool:
    """With weights and with statistics of its own."""
    return isinstance(norm, nn.BatchNorm2d) and norm.affine and norm.running_mean is not None
