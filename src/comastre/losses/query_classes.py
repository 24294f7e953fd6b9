"""Class losses of models that call a query without a mask "no object": logits (K, B, N, C + 1), that class last."""

from __future__ import annotations

import torch
from torch import Tensor

from comastre.losses.matching import Assignment
from comastre.nets.precision import upcast


def query_labels(assignment: Assignment, labels: Tensor, no_object: int) -> Tensor:
    """(K, B, N): the class of the mask that each query is matched with, of labels (B, G), or `no_object`."""
    num_layers, num_images, _ = assignment.query.shape
    places = torch.where(assignment.valid, assignment.query, assignment.num_queries)  # (K, B, G)
    # Masks without a query share a place of their own, which is cut off.
    of_queries = labels.new_full((num_layers, num_images, assignment.num_queries + 1), no_object)
    return of_queries.scatter(2, places, labels.expand(num_layers, -1, -1))[..., :-1]


def class_log_probabilities(logits: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Log softmax of logits (..., C + 1); `hidden` (C + 1,) classes count as "no object", too.

    Where old classes are not labelled, a query without a mask may well be one of them: MiB's unbiased cross-entropy.
    """
    logits = upcast(logits)
    logs = logits.log_softmax(-1)
    if hidden is None:
        return logs
    nothing = logs.masked_fill(~hidden, -torch.inf)
    nothing = torch.cat((nothing[..., :-1], logs[..., -1:]), dim=-1).logsumexp(-1, keepdim=True)
    return torch.cat((logs[..., :-1], nothing), dim=-1)


def query_cross_entropy(
    log_probabilities: Tensor, labels: Tensor, no_object_weight: float, normaliser: Tensor | float
) -> Tensor:
    """Cross-entropy of (K, B, N, C + 1) against labels (K, B, N), summed over the K layers.

    Each layer is a mean in which "no object" weighs `no_object_weight`; `normaliser` is the sum of all weights.
    """
    losses = -log_probabilities.gather(-1, labels[..., None])[..., 0]
    weights = torch.where(labels == log_probabilities.shape[-1] - 1, no_object_weight, 1.0)
    return (weights.to(losses.dtype) * losses).sum() / normaliser


def query_focal_loss(
    log_probabilities: Tensor, labels: Tensor, alpha: float, gamma: float, normaliser: Tensor | float
) -> Tensor:
    """alpha (1 - p)^gamma times the cross-entropy, p the probability of the label: CoMFormer's class loss.

    (K, B, N, C + 1) against labels (K, B, N), summed over the K layers; `normaliser` is the number of queries B N.
    """
    logs = log_probabilities.gather(-1, labels[..., None])[..., 0]
    # Kept from 0, where the root of a certain label would have no gradient.
    uncertainty = (-torch.expm1(logs)).clamp(min=1e-12)
    return -(alpha * uncertainty.pow(gamma) * logs).sum() / normaliser
