"""Means over a data-dependent count, the same however a batch is split over processes.

Data-parallel training averages the gradients of the processes. The mean of the processes' losses is the loss of the
whole batch only if every process divides by the same number: the count averaged over the processes. So every loss
divides by `normaliser_of(count)`, or by the `normaliser` that its caller gives (one reduction for many counts).
"""

from __future__ import annotations

from torch import Tensor

from comastre.distributed import average_over_processes

# Far below any real count or weight sum, so that an empty sum divides to an exact zero instead of 0 / 0.
_SMALLEST_COUNT = 1e-6


def normaliser_of(count: Tensor) -> Tensor:
    """What a loss divides by: the count averaged over processes, kept from 0."""
    return average_over_processes(count).clamp(min=_SMALLEST_COUNT)


def mean_over(values: Tensor, weights: Tensor, normaliser: Tensor | float | None = None) -> Tensor:
    """Weighted mean of `values`, weights (bool or float) of the same shape; an exact zero when all weights are 0.

    Without `normaliser` the sum is divided by the weights' own sum, averaged over processes.
    """
    weights = weights.to(values.dtype)
    if normaliser is None:
        normaliser = normaliser_of(weights.sum())
    return (values * weights).sum() / normaliser
