"""Activations that are computed again for the backward pass in place of being kept: less memory, more time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from comastre.nets.made_again import recomputing

Result = TypeVar("Result")


class Recomputing(nn.Module):
    """A module that keeps only what its large parts are given, where `recompute` is on.

    What is computed again is computed by the same operations, so gradients are the same to the bit.
    """

    recompute: bool = False

    def lightly(self, part: Callable[..., Result], *given: object) -> Result:
        """`part(*given)`, whose inside is not kept where `recompute` is on."""
        if not (self.recompute and torch.is_grad_enabled()):
            return part(*given)
        result: Result = checkpoint(_anew, part, *given, use_reentrant=False)
        return result


def _anew(part: Callable[..., Result], *given: object) -> Result:
    with recomputing():
        return part(*given)


def set_recompute(model: nn.Module, on: bool) -> None:
    """Let all parts of a model that can recompute do so, or keep everything again."""
    for module in model.modules():
        if isinstance(module, Recomputing):
            module.recompute = on
