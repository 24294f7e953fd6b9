"""DeepLabv3 that remembers what the features of each class look like: a mean feature per class, part of its weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from comastre.nets.backbone import Backbone
from comastre.nets.deeplab import DeepLab


class Prototypes(nn.Module):
    """Mean features (K, C) of background and all classes, and how many each is the mean of."""

    means: Tensor
    counts: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(0, channels))
        self.register_buffer("counts", torch.zeros(0, dtype=torch.long))

    @property
    def known(self) -> Tensor:
        """(K,) bool: whether anything of a class was seen."""
        return self.counts > 0

    def grow(self, num_classes: int) -> None:
        """Make room for more classes."""
        self.means = torch.cat([self.means, self.means.new_zeros(num_classes, self.means.shape[1])])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(num_classes)])

    @torch.no_grad()
    def add(self, sums: Tensor, counts: Tensor) -> None:
        """Take sums (K, C) of `counts` (K,) more features into the means."""
        total = self.counts + counts
        self.means += (sums.to(self.means.dtype) - counts[:, None] * self.means) / total.clamp(min=1)[:, None]
        self.counts += counts


class DeepLabWithPrototypes(DeepLab):
    """Its prototypes grow with its classes, and are kept in bundles and checkpoints as its weights are."""

    def __init__(
        self,
        backbone: Backbone,
        channels: int,
        rates: Sequence[int],
        tasks: Sequence[int],
        prototype_channels: int,
    ) -> None:
        super().__init__(backbone, channels, rates, ())
        self.prototypes = Prototypes(prototype_channels)
        for size in tasks:
            self.add_task(size)

    def add_task(self, num_classes: int) -> None:
        super().add_task(num_classes)
        self.prototypes.grow(1 + sum(self.tasks) - len(self.prototypes.means))
