"""Recognition losses over the current classes (Eq. 2), its ablation, and the auxiliary old-versus-new loss.

Proposals come padded to M per image with `valid` (B, M); the mean is over all valid proposals of the batch. By default
the count is averaged over processes; a caller that has it already (accumulation, one reduction) gives `normaliser`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.losses.reduce import mean_over
from comastre.nets.precision import upcast


def focal_terms(logits: Tensor, positive: Tensor, gamma: float) -> Tensor:
    """Focal loss per logit: (1 - p_t)^gamma * -log p_t, p_t the probability given to the truth."""
    towards_truth = torch.where(positive, logits, -logits)
    # (1 - p_t)^gamma through the logarithm: its gradient stays finite for every gamma and every logit.
    return F.softplus(-towards_truth) * torch.exp(-gamma * F.softplus(towards_truth))


def focal_loss(
    logits: Tensor, labels: Tensor, valid: Tensor, gamma: float, normaliser: Tensor | float | None = None
) -> Tensor:
    """Eq. 2: focal loss of logits (B, M, C) against labels (B, M), sum over classes, mean over valid proposals."""
    logits = upcast(logits)
    # A comparison, because one_hot checks its input on the host.
    positive = labels[..., None] == torch.arange(logits.shape[-1], device=labels.device)  # (B, M, C)
    return mean_over(focal_terms(logits, positive, gamma).sum(-1), valid, normaliser)


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, valid: Tensor, normaliser: Tensor | float | None = None
) -> Tensor:
    """Softmax cross-entropy of logits (B, M, C) against labels (B, M), mean over valid (ablation of paper Table 7)."""
    # Padding rows may hold any label; 0 is always in range.
    labels = torch.where(valid, labels, 0)
    log_probabilities = upcast(logits).log_softmax(-1)
    return mean_over(-log_probabilities.gather(-1, labels[..., None])[..., 0], valid, normaliser)


def negatives_loss(logits: Tensor, valid: Tensor, gamma: float, normaliser: Tensor | float | None = None) -> Tensor:
    """Focal loss of logits (B, M, C) with target 0 for all classes (ours), mean over valid."""
    logits = upcast(logits)
    return mean_over(focal_terms(logits, torch.zeros_like(logits, dtype=torch.bool), gamma).sum(-1), valid, normaliser)


def across_tasks_loss(
    logits: Tensor,
    labels: Tensor,
    valid: Tensor,
    object_logits: Tensor,
    old_logits: Tensor,
    object_valid: Tensor,
    normalisers: tuple[Tensor | float | None, Tensor | float | None] = (None, None),
) -> Tensor:
    """Cross-entropy of the softmax over the classes of all tasks, as if every class came equally often (ours).

    Matched proposals, logits (B, G, C), have their labels (B, G); old objects, logits (B, U, C), have what the old
    model says of them, logits (B, U, C_old), and nothing of a new class. A prediction takes the largest of all logits,
    which no other term compares between tasks. Images of a step show its new classes far more often than any old one,
    so the mean over matched proposals weighs as much as new classes are of all, that over old objects the rest.
    """
    targets = upcast(old_logits.detach()).softmax(-1)
    new_share = 1 - targets.shape[-1] / logits.shape[-1]
    targets = F.pad(targets, (0, logits.shape[-1] - targets.shape[-1]))  # (B, U, C)
    # Less the targets' entropy, which has no gradient: 0 where nothing was forgotten.
    divergence = (torch.special.xlogy(targets, targets) - targets * upcast(object_logits).log_softmax(-1)).sum(-1)
    of_matched = cross_entropy_loss(logits, labels, valid, normalisers[0])
    return new_share * of_matched + (1 - new_share) * mean_over(divergence, object_valid, normalisers[1])


def auxiliary_loss(logits: Tensor, labels: Tensor, valid: Tensor, normaliser: Tensor | float | None = None) -> Tensor:
    """Cross-entropy of the auxiliary head (B, M, 1 + C^t): label 0 is "an old class", k + 1 the k-th new class."""
    return cross_entropy_loss(logits, labels, valid, normaliser)
