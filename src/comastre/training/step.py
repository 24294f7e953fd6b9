"""One training step as a module: what the devices wrap."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from comastre.methods.protocol import Method
from comastre.training.launch import Opaque


class TrainStep(nn.Module):
    """A model with whatever learns beside it; one forward pass gives the terms of one batch.

    A method's losses call several parts of its model in any order, but several devices must see a single call.
    """

    def __init__(self, method: Method, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.beside = method.training_modules()
        self.method = method

    def forward(self, work: Opaque) -> dict[str, Tensor]:
        """Terms of (batch, points); wrapped, because fabric looks for tensors in arguments and refuses frozen ones."""
        batch, points = work.value
        return self.method.losses(self.model, batch, points)


def terms_of(module: Any, batch: Any, points: Any) -> dict[str, Tensor]:
    """The terms of a batch by a `TrainStep`, as the devices wrapped it."""
    terms: dict[str, Tensor] = module(Opaque((batch, points)))
    return terms
