"""What the old model passes on: objectness (Eq. 3 to 5) and class distillation.

Query i of the old model corresponds to query i of the new one. No gradient flows to the old model, and every term and
its gradient is 0 where the new model says what the old one says; not so Eq. 4 as it is printed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.config.sections import MaskLossConfig
from comastre.losses.masks import mask_bce, mask_dice
from comastre.losses.points import PointCounts, sample_each, uncertain_points
from comastre.losses.reduce import mean_over, normaliser_of
from comastre.nets.precision import upcast


def bernoulli_divergence(new_logits: Tensor, old_logits: Tensor) -> Tensor:
    """KL(old || new) per element of two Bernoulli distributions given by logits."""
    # Cross-entropy softplus(x) - x p of the new logits less that of the old ones: half the work of four logarithms.
    return F.softplus(new_logits) - F.softplus(old_logits) - (new_logits - old_logits) * old_logits.sigmoid()


def score_distillation(
    new_logits: Tensor, old_logits: Tensor, unmatched: Tensor, normaliser: Tensor | float | None = None
) -> Tensor:
    """Eq. 3: KL(old || new) of objectness logits (B, N), mean over the unmatched (B, N) queries of the batch."""
    divergence = bernoulli_divergence(upcast(new_logits), upcast(old_logits.detach()))
    return mean_over(divergence, unmatched, normaliser)


@torch.no_grad()
def proposal_weights(old_objectness_logits: Tensor, unmatched: Tensor, beta: float) -> Tensor:
    """Weights (B, N) of Eq. 4 and 5: old_s^beta over unmatched queries, normalised per image, 0 for matched ones.

    The weights of an image sum to 1, or to 0 when all its queries are matched, so the sum over a batch is the number of
    images that take part and the mean over those images is the weighted mean.
    """
    # A softmax of beta * log s: scores that underflow still get their share.
    log_weights = beta * F.logsigmoid(upcast(old_objectness_logits))
    log_weights = log_weights.masked_fill(~unmatched, torch.finfo(log_weights.dtype).min)
    return log_weights.softmax(-1) * unmatched


def soft_dice(new: Tensor, old: Tensor) -> Tensor:
    """Dice distance, smoothing 1, over the last axis of two soft masks.

    With areas of squares, not of values as against ground truth: only this form is smallest, and 0, where new equals
    old. The other one is above 0 there and rewards masks that are harder than the old ones. For hard masks both agree.
    """
    overlap = (new * old).sum(-1)
    areas = new.square().sum(-1) + old.square().sum(-1)
    return 1 - (2 * overlap + 1) / (areas + 1)


def mask_distillation(
    new_masks: Tensor,
    old_masks: Tensor,
    weights: Tensor,
    candidates: Tensor,
    uniform: Tensor,
    config: MaskLossConfig,
    normaliser: Tensor | float | None = None,
    divergence: bool = False,
) -> tuple[Tensor, Tensor]:
    """Eq. 4: (BCE, dice) of new against old mask logits (B, N, h, w), weighted by `proposal_weights` (B, N).

    On points that are uncertain for the new model, as in the mask loss. As printed it is the mask loss with the old
    soft mask as the truth. With `divergence` (ours) it is 0 where nothing was forgotten: the entropy of the old mask is
    taken off the cross-entropy, which has no gradient, and dice is `soft_dice`.
    """
    old_masks = old_masks.detach()
    if normaliser is None:
        normaliser = normaliser_of(weights.sum())  # once for both
    points = uncertain_points(new_masks, candidates, uniform, PointCounts.of(config).important)  # (B, N, P, 2)
    new, old = sample_each(new_masks, points), sample_each(old_masks, points)  # (B, N, P)
    if not divergence:
        return mask_bce(new, old.sigmoid(), weights, normaliser), mask_dice(new, old.sigmoid(), weights, normaliser)
    bce = mean_over(bernoulli_divergence(new, old).mean(-1), weights, normaliser)
    dice = mean_over(soft_dice(new.sigmoid(), old.sigmoid()), weights, normaliser)
    return bce, dice


def position_distillation(
    new_embeddings: Tensor, old_embeddings: Tensor, weights: Tensor, normaliser: Tensor | float | None = None
) -> Tensor:
    """Eq. 5: 1 - cosine of embeddings (B, N, d), weighted by `proposal_weights` (B, N)."""
    new = F.normalize(upcast(new_embeddings), dim=-1)
    old = F.normalize(upcast(old_embeddings.detach()), dim=-1)
    # Half the squared distance of unit vectors is 1 - cos without its cancellation: exactly 0 at equality, never below.
    return mean_over((new - old).square().sum(-1) / 2, weights, normaliser)


def class_distillation(
    new_logits: Tensor,
    old_logits: Tensor,
    valid: Tensor,
    normaliser: Tensor | float | None = None,
    from_old: bool = False,
) -> Tensor:
    """KL(p || p_old) of the softmax over the old classes, logits (B, M, C_old), mean over valid (B, M) proposals.

    That is the printed direction, which mostly asks that nothing is likely now that was not before. With `from_old` it
    is KL(p_old || p), which asks that everything is still likely that was.
    """
    new = upcast(new_logits).log_softmax(-1)
    old = upcast(old_logits.detach()).log_softmax(-1)
    one, other = (old, new) if from_old else (new, old)
    return mean_over((one.exp() * (one - other)).sum(-1), valid, normaliser)


def class_score_distillation(
    new_logits: Tensor, old_logits: Tensor, valid: Tensor, normaliser: Tensor | float | None = None
) -> Tensor:
    """KL(old || new) of each old class's own probability, sum over classes, mean over valid (ours).

    The classifiers are sigmoids. When the logits of all old classes sink together, their softmax stays as it is, but
    their probabilities fall below that of a new class, which then wins the object.
    """
    divergence = bernoulli_divergence(upcast(new_logits), upcast(old_logits.detach()))  # (B, M, C_old)
    return mean_over(divergence.sum(-1), valid, normaliser)
