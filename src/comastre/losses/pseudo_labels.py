"""What an old model says of pixels that are labelled background, where it is sure of it (PLOP).

Probabilities are (B, K, H, W), background first; labels (B, H, W), 255 ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from comastre.data.dataset import IGNORE


@dataclass(frozen=True)
class PseudoLabels:
    """Labels with an old model's word where they said background."""

    labels: Tensor
    """(B, H, W): as given, but background is what the old model says, or 255 where it is not sure."""
    sure: Tensor
    """(B,): share of an image's background of which the old model is sure, 1 where there is none (PLOP's nu)."""


def entropy(probabilities: Tensor) -> Tensor:
    """(B, H, W) in 0..1: the entropy of each pixel's probabilities, as a share of the largest possible."""
    return -(probabilities * (probabilities + 1e-8).log()).sum(dim=1) / math.log(probabilities.shape[1])


def public_entropy(probabilities: Tensor, num_classes: int) -> Tensor:
    """The same as PLOP's public code has it: a mean over classes, divided by the log of all `num_classes` again."""
    return entropy(probabilities) / (probabilities.shape[1] * math.log(num_classes))


def count_uncertainties(uncertainty: Tensor, predicted: Tensor, counted: Tensor, num_classes: int, bins: int) -> Tensor:
    """(num_classes, bins): how many of the `counted` pixels of each predicted class are how uncertain, 0..1.

    All three are (B, H, W); `counted` is bool.
    """
    place = (uncertainty * bins).long().clamp(0, bins - 1)
    flat = (predicted * bins + place).flatten()
    histogram = torch.zeros(num_classes * bins, dtype=torch.long, device=flat.device)
    return histogram.scatter_add_(0, flat, counted.long().flatten()).view(num_classes, bins)


def median_thresholds(histogram: Tensor, floor: float) -> Tensor:
    """(K,): each class's median uncertainty of its histogram (K, bins), at least `floor`."""
    bins = histogram.shape[1]
    half = histogram.sum(dim=1) / 2  # (K,)
    reached = histogram.cumsum(dim=1)
    place = (reached < half[:, None]).sum(dim=1, keepdim=True).clamp(max=bins - 1)  # (K, 1)
    inside = histogram.gather(1, place)[:, 0]
    before = reached.gather(1, place)[:, 0] - inside
    medians = (place[:, 0] + (half - before) / inside.clamp(min=1)) / bins
    return medians.clamp(min=floor)


def public_thresholds(histogram: Tensor, floor: float) -> Tensor:
    """The same as PLOP's public code finds it, whose search adds up the places of bins in place of their counts.

    So it ends in the first bin that alone holds half of the pixels; without such a bin everything is accepted.
    """
    bins = histogram.shape[1]
    total = histogram.sum(dim=1)
    half = total / 2
    alone = (histogram >= half[:, None]) & (histogram > 0)  # (K, bins)
    place = alone.int().argmax(dim=1, keepdim=True)
    inside = histogram.gather(1, place)[:, 0]
    found = (place[:, 0] + half / inside.clamp(min=1)) / bins
    found = torch.where(alone.any(dim=1), found, math.inf)
    return torch.where(total > 0, found, 0.0).clamp(min=floor)


def pseudo_label(labels: Tensor, predicted: Tensor, uncertainty: Tensor, thresholds: Tensor) -> PseudoLabels:
    """Put the old model's classes where labels say background and it is less uncertain than the class's threshold.

    `labels`, `predicted` and `uncertainty` are (B, H, W), `thresholds` (K,).
    """
    background = labels == 0
    certain = background & (uncertainty < thresholds[predicted])
    found = torch.where(certain, predicted, torch.where(background, IGNORE, labels))
    total = background.sum(dim=(1, 2))
    share = certain.sum(dim=(1, 2)) / total.clamp(min=1)
    return PseudoLabels(found, torch.where(total > 0, share, 1.0))
