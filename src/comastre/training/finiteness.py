"""Stop on a loss that is NaN or infinite, without making the GPU wait for the host at every iteration."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from comastre.training.stopping import Diverged


@dataclass(frozen=True)
class _Watched:
    names: tuple[str, ...]
    values: Tensor
    """(terms,) on the host, or on its way there."""
    arrived: torch.cuda.Event | None
    where: str
    image_ids: tuple[str, ...]


class LossWatch:
    """Looks at every term of every iteration: at once on the CPU; on a GPU when its copy has arrived."""

    def __init__(self) -> None:
        self._pending: deque[_Watched] = deque()

    def watch(self, terms: Mapping[str, Tensor], step: int, iteration: int, image_ids: tuple[str, ...]) -> None:
        """Note the terms of one part of a batch; raise Diverged for whatever is known to be bad by now."""
        values = torch.stack([value.detach().float() for value in terms.values()])
        arrived = None
        if values.is_cuda:
            values = values.to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        where = f"step {step}, iteration {iteration}"
        self._pending.append(_Watched(tuple(terms), values, arrived, where, image_ids))
        self.check(wait=False)

    def check(self, wait: bool = True) -> None:
        """Look at what has arrived; with `wait` at everything noted so far."""
        while self._pending:
            first = self._pending[0]
            if first.arrived is not None:
                if not wait and not first.arrived.query():
                    return
                first.arrived.synchronize()
            self._pending.popleft()
            for name, value in zip(first.names, first.values.tolist(), strict=True):
                if not math.isfinite(value):
                    images = ", ".join(first.image_ids)
                    raise Diverged(
                        f"the loss term {name} became {value} at {first.where} on images {images}: "
                        "lower optimiser.learning_rate or optimiser.clip and look at these images; "
                        "the last good checkpoint is kept"
                    )
