"""Where half precision is too coarse."""

from __future__ import annotations

import torch
from torch import Tensor


def upcast(tensor: Tensor) -> Tensor:
    """Half-precision values as float32; float32 and float64 as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
