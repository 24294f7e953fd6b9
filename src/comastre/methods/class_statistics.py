"""What classes look like in numbers: sums over masks, of which a mean per class and one covariance are made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from comastre.distributed import in_many_processes, sum_over_processes

NOTHING = -1
"""Class of a proposal that shows no labelled object."""
SAME = 0.5
"""Overlap (IoU) above which a proposal shows an object."""


@dataclass(frozen=True)
class Sums:
    """Over masks, in double precision on the host; row 0 stands for "no labelled object", row k + 1 for class k."""

    counts: Tensor
    """(1 + C,)."""
    totals: Tensor
    """(1 + C, D): features added up."""
    squares: Tensor
    """(D, D): products of a mask's features, added up over all rows."""

    @classmethod
    def zeros(cls, num_classes: int, width: int) -> Sums:
        """Nothing seen yet, of features of so many numbers."""
        shapes = ((1 + num_classes,), (1 + num_classes, width), (width, width))
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def add(self, features: Tensor, classes: Tensor) -> None:
        """Masks with features (M, D) that show classes (M,), or `NOTHING`."""
        features, classes = features.detach().cpu().double(), classes.cpu()
        self.counts.index_add_(0, classes + 1, torch.ones(len(classes), dtype=torch.float64))
        self.totals.index_add_(0, classes + 1, features)
        self.squares.addmm_(features.T, features)

    def over_processes(self, device: torch.device) -> Sums:
        """Added up over all processes; every process must call it."""
        if not in_many_processes():
            return self
        return Sums(*(sum_over_processes(each.to(device)).cpu() for each in (self.counts, self.totals, self.squares)))

    @property
    def means(self) -> Tensor:
        """(1 + C, D); zeros where nothing was seen."""
        return self.totals / self.counts.clamp(min=1)[:, None]

    def covariance(self) -> Tensor:
        """(D, D): of what differs from its own class's mean, the same for all classes."""
        between = self.means.T @ self.totals
        return (self.squares - between) / self.counts.sum().clamp(min=1)


@dataclass(frozen=True)
class KeptStatistics:
    """What a trained model keeps of its classes beside its weights: a few hundred numbers a class, and no image."""

    means: Tensor
    """(1 + C, D)."""
    counts: Tensor
    """(1 + C,)."""
    covariance: Tensor
    """(D, D)."""

    @classmethod
    def of(cls, sums: Sums) -> KeptStatistics | None:
        """Of all classes; None where nothing was seen."""
        if not sums.counts.any():
            return None
        return cls(sums.means.float(), sums.counts.float(), sums.covariance().float())

    def with_newest(self, sums: Sums, num_classes: int) -> KeptStatistics:
        """With rows for the newest classes; what is known of the others stays."""
        means, counts = sums.means[-num_classes:].float(), sums.counts[-num_classes:].float()
        return replace(self, means=torch.cat([self.means, means]), counts=torch.cat([self.counts, counts]))

    def first(self, num_classes: int) -> KeptStatistics:
        """Of the first classes alone."""
        return replace(self, means=self.means[: 1 + num_classes], counts=self.counts[: 1 + num_classes])

    def tensors(self) -> dict[str, Tensor]:
        """By their names, as files have them."""
        return {"means": self.means, "counts": self.counts, "covariance": self.covariance}


def precision_of(covariance: Tensor, shrinkage: float) -> Tensor:
    """The inverse (D, D) of a covariance that is drawn towards its own diagonal, so that it has one."""
    variances = covariance.diagonal()
    # A feature that never varies says nothing, and must not divide by 0.
    floor = 1e-6 * variances.mean().clamp(min=1e-12)
    shrunk = (1 - shrinkage) * covariance + shrinkage * torch.diag(variances)
    return torch.linalg.inv(shrunk + floor * torch.eye(len(variances), dtype=covariance.dtype)).contiguous()


def on_labelled(proposed: Tensor, labelled: Tensor, counted: Tensor) -> Tensor:
    """(N,) bool: whether a proposed mask shows one of the labelled objects.

    proposed (N, h, w) and labelled (G, h, w) bool; counted (h, w) is false where nobody knows.
    """
    if not len(labelled):
        return proposed.new_zeros(len(proposed))
    proposed = (proposed & counted).flatten(1).float()  # (N, P)
    labelled = (labelled & counted).flatten(1).float()  # (G, P)
    shared = proposed @ labelled.T  # (N, G)
    either = proposed.sum(1, keepdim=True) + labelled.sum(1) - shared
    return (shared > SAME * either).any(dim=1)
