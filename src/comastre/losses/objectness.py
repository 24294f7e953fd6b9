"""Objectness loss: matched queries are objects, unmatched ones are not (Eq. 1, first line)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.losses.reduce import normaliser_of
from comastre.nets.precision import upcast


def objectness_normaliser(counts: Sequence[int], num_queries: int, no_object_weight: float) -> float:
    """Sum of the weights in `objectness_loss` for images with these mask counts, known before any matching."""
    matched = sum(min(count, num_queries) for count in counts)
    return matched + no_object_weight * (num_queries * len(counts) - matched)


def objectness_loss(
    logits: Tensor, matched: Tensor, no_object_weight: float, normaliser: Tensor | float | None = None
) -> Tensor:
    """Weighted binary cross-entropy of logits (K, B, N) against matched (K, B, N), summed over the K layers.

    Each layer is a weighted mean, as Mask2Former's class loss is: matched queries weigh 1, unmatched ones
    `no_object_weight`. `normaliser` (a number or (K,)) is the weights' sum per layer; by default it is averaged over
    processes.
    """
    logits = upcast(logits)
    losses = F.binary_cross_entropy_with_logits(logits, matched.to(logits.dtype), reduction="none")
    weights = torch.where(matched, 1.0, no_object_weight).to(logits.dtype)
    if normaliser is None:
        normaliser = normaliser_of(weights.sum((1, 2)))  # (K,)
    return ((weights * losses).sum((1, 2)) / normaliser).sum()
