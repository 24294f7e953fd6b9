"""Where half precision is too coarse, and where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def upcast(tensor: Tensor) -> Tensor:
    """Half-precision values as float32; float32 and float64 as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


@contextmanager
def predicting_in(precision: str, model: nn.Module) -> Iterator[None]:
    """Let a model predict in `precision`: 32-true, or bf16-mixed for bfloat16 wherever its sums allow it.

    Parts that training keeps in float32 (`pixel_decoder.float32`) are in bfloat16, too: they are most of the work.
    """
    if precision == "32-true":
        yield
        return
    held = [module for module in model.modules() if getattr(module, "float32", None) is True]
    for module in held:
        module.float32 = False  # type: ignore[assignment]
    try:
        with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):
            yield
    finally:
        for module in held:
            module.float32 = True  # type: ignore[assignment]
