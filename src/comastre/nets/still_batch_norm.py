"""BatchNorm that stands still, as one multiplication and addition that keeps nothing for the backward pass.

PyTorch's keeps its input also where neither statistics nor weights learn, which is half of a ResNet's activations.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn


class StillBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d after `ease_batch_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return _scale(self, input) if _stands_still(self, input) else super().forward(input)


class StillBatchNormAct2d(BatchNormAct2d):
    """timm's BatchNorm with activation after `ease_batch_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(_scale(self, x))) if _stands_still(self, x) else super().forward(x)


_STILL: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm2d: StillBatchNorm2d,
    BatchNormAct2d: StillBatchNormAct2d,
}


def ease_batch_norm(model: nn.Module) -> None:
    """Let every BatchNorm2d of `model` be a multiplication where it stands still; names in the state dict stay."""
    for module in model.modules():
        if type(module) in _STILL:
            module.__class__ = _STILL[type(module)]


def _stands_still(norm: Any, maps: Tensor) -> bool:
    """Whether neither statistics nor weights learn; of mixed types PyTorch's own keeps more digits."""
    if norm.training or norm.running_mean is None or norm.weight is None or norm.weight.dtype != maps.dtype:
        return False
    return not (norm.weight.requires_grad or norm.bias.requires_grad)


def _scale(norm: Any, maps: Tensor) -> Tensor:
    # In the order, and with the fused additions, of PyTorch's own: on common processors the same to the bit.
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    shift = torch.addcmul(norm.bias, norm.running_mean, scale, value=-1)
    return torch.addcmul(shift[:, None, None], maps, scale[:, None, None])
