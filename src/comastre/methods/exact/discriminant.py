"""Streaming linear discriminant analysis: which class a mask's features fit best, from means and one covariance.

Adding a class adds a row; no row that is there ever changes, so the order in which classes come does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from comastre.methods.class_statistics import KeptStatistics, Sums, precision_of

INDEPENDENT = 0.5
"""Share of a feature's numbers that vary for themselves, by which a mean of few masks is made up for
(docs/experiments.md, Exact guarantee)."""


class Discriminant(nn.Module):
    """The kept statistics: row 0 of `means` and `counts` stands for "no labelled object", row k + 1 for class k."""

    means: Tensor
    """(1 + C, D)."""
    counts: Tensor
    """(1 + C,): masks of which a mean is made; a class of none is never found."""
    precision: Tensor
    """(D, D): inverse of the shared, shrunk covariance."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(1 + num_classes, width))
        self.register_buffer("counts", torch.zeros(1 + num_classes))
        self.register_buffer("precision", torch.eye(width))

    @property
    def num_classes(self) -> int:
        return len(self.counts) - 1

    @property
    def width(self) -> int:
        """Features of a proposal."""
        return self.means.shape[1]

    @property
    def known(self) -> Tensor:
        """(C,) bool: classes of which masks were seen."""
        return self.counts[1:] > 0

    def grow(self, num_classes: int) -> None:
        """Room for more classes, of which nothing is known yet."""
        self.means = torch.cat([self.means, self.means.new_zeros(num_classes, self.width)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(num_classes)])

    def learn_all(self, sums: Sums, shrinkage: float) -> None:
        """Take over everything, the covariance too: what a first step ends with."""
        self._set(slice(None), sums)
        self.precision = precision_of(sums.covariance(), shrinkage).to(self.precision)

    def take(self, kept: KeptStatistics, shrinkage: float) -> None:
        """Take over what a model of CoMasTRe's kept of its classes."""
        self.means, self.counts = kept.means.to(self.means), kept.counts.to(self.counts)
        self.precision = precision_of(kept.covariance.double().cpu(), shrinkage).to(self.precision)

    def learn_newest(self, sums: Sums, num_classes: int) -> None:
        """Take over the means of the newest classes alone."""
        self._set(slice(len(self.counts) - num_classes, None), sums)

    def _set(self, rows: slice, sums: Sums) -> None:
        self.means[rows] = sums.means[rows].to(self.means)
        self.counts[rows] = sums.counts[rows].to(self.counts)

    def forward(self, features: Tensor) -> Tensor:
        """Log-odds (..., 1 + C) of features (..., D), up to a constant; minus infinity for classes never seen."""
        weights = self.means @ self.precision  # (1 + C, D)
        # The mean of n masks lies D / n too far out in squared distance, which would make rare classes too unlikely.
        too_far = INDEPENDENT * self.width / self.counts.clamp(min=1)
        offsets = -0.5 * ((weights * self.means).sum(dim=1) - too_far)
        odds = features.to(weights.dtype) @ weights.T + offsets
        return odds.masked_fill(self.counts == 0, -torch.inf)
