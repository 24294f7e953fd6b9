"""Mask losses on sampled points: binary cross-entropy and dice of matched proposals (Eq. 1, second line)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.config.sections import MaskLossConfig
from comastre.data.targets import Targets
from comastre.distributed import average_over_processes
from comastre.losses.matching import Assignment
from comastre.losses.points import PointCounts, sample_each, uncertain_points
from comastre.losses.reduce import mean_over
from comastre.nets.outputs import QueryMasks, mask_logits_side_by_side, take_queries
from comastre.nets.precision import upcast


def average_num_masks(count: int, device: torch.device | str) -> Tensor:
    """Masks per process, averaged over processes, at least 1: what Mask2Former divides the mask losses by."""
    return average_over_processes(torch.tensor(float(count), device=device)).clamp(min=1)


def mask_bce(logits: Tensor, targets: Tensor, weights: Tensor, normaliser: Tensor | float) -> Tensor:
    """Binary cross-entropy of logits (B, G, P): mean over points, then sum weighted by (B, G) / normaliser."""
    logits = upcast(logits)
    per_point = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return mean_over(per_point.mean(-1), weights, normaliser)


def mask_dice(logits: Tensor, targets: Tensor, weights: Tensor, normaliser: Tensor | float) -> Tensor:
    """Dice loss, smoothing 1, of logits (B, G, P): sum weighted by (B, G) / normaliser."""
    return dice_of(upcast(logits).sigmoid(), targets, weights, normaliser)


def dice_of(probabilities: Tensor, targets: Tensor, weights: Tensor, normaliser: Tensor | float) -> Tensor:
    """Dice loss, smoothing 1, of masks (B, G, P) in 0..1: sum weighted by (B, G) / normaliser."""
    targets = targets.to(probabilities.dtype)
    overlap = (probabilities * targets).sum(-1)  # (B, G)
    areas = probabilities.sum(-1) + targets.sum(-1)
    return mean_over(1 - (2 * overlap + 1) / (areas + 1), weights, normaliser)


def matched_mask_losses(
    layers: Sequence[QueryMasks],
    targets: Targets,
    assignment: Assignment,
    candidates: Tensor,
    uniform: Tensor,
    config: MaskLossConfig,
    num_masks: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """(BCE, dice) of the matched masks, summed over all K layers (deep supervision), each divided by `num_masks`.

    `candidates` (B, C, 2) and `uniform` (B, U, 2) are drawn by the caller in the numbers of `PointCounts.of(config)`
    and serve all layers; the most uncertain ones are chosen for every mask at every layer.
    """
    # All layers of an image side by side, so that each step that follows is one call.
    logits = mask_logits_side_by_side(layers, assignment.query)  # (B, K * G, h, w)
    points = uncertain_points(logits, candidates, uniform, PointCounts.of(config).important)  # (B, K * G, P, 2)
    at_points = sample_each(logits, points)  # (B, K * G, P)
    truth = truth_at(points, targets, assignment)
    valid = assignment.valid.transpose(0, 1).flatten(1)  # (B, K * G)
    return mask_bce(at_points, truth, valid, num_masks), mask_dice(at_points, truth, valid, num_masks)


def matched_softmax_mask_losses(
    layers: Sequence[QueryMasks],
    targets: Targets,
    assignment: Assignment,
    candidates: Tensor,
    uniform: Tensor,
    config: MaskLossConfig,
    num_masks: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """(cross-entropy, dice) of matched masks that are a softmax over the queries (CoMFormer), as above.

    The cross-entropy is that of the mask's own pixels: elsewhere a softmax is held down by whoever is right there.
    """
    logs = [upcast(layer.mask_logits).log_softmax(1) for layer in layers]
    log_masks = of_matched(logs, assignment)  # (B, K * G, h, w)
    masks = log_masks.exp()
    # As far from one half as a logit is from 0.
    points = uncertain_points(2 * masks - 1, candidates, uniform, PointCounts.of(config).important)
    truth = truth_at(points, targets, assignment)
    valid = assignment.valid.transpose(0, 1).flatten(1)  # (B, K * G)
    entropy = -(sample_each(log_masks, points) * truth).mean(-1)
    return mean_over(entropy, valid, num_masks), dice_of(sample_each(masks, points), truth, valid, num_masks)


def of_matched(maps: Sequence[Tensor], assignment: Assignment) -> Tensor:
    """(B, K * G, h, w): the maps (B, N, h, w) of K layers at the query of each mask.

    All layers of an image side by side, so that each step that follows is one call.
    """
    return torch.cat([take_queries(layer, query) for layer, query in zip(maps, assignment.query, strict=True)], dim=1)


def truth_at(points: Tensor, targets: Targets, assignment: Assignment) -> Tensor:
    """Ground truth (B, K * G, P) at the points (B, K * G, P, 2) of every mask and layer."""
    num_layers, num_images, largest = assignment.query.shape
    num_points = points.shape[2]
    # A ground-truth mask is read at the points of all layers at once: its full-size map is never copied per layer.
    by_mask = points.reshape(num_images, num_layers, largest, num_points, 2).transpose(1, 2)  # (B, G, K, P, 2)
    truth = sample_each(targets.masks, by_mask.flatten(2, 3))  # (B, G, K * P)
    return truth.reshape(num_images, largest, num_layers, num_points).transpose(1, 2).flatten(1, 2)
