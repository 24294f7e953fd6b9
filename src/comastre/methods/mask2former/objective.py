"""The losses of one batch: which query stands for which mask, and what is asked of it (docs/specification.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from comastre.data.targets import Targets
from comastre.distributed import average_over_processes
from comastre.losses.masks import matched_mask_losses, matched_softmax_mask_losses
from comastre.losses.matching import Assignment, assign, class_scores_of, mask_costs, softmax_mask_costs
from comastre.losses.objectness import objectness_normaliser
from comastre.losses.points import PointCounts, PointSource
from comastre.losses.query_classes import (
    class_log_probabilities,
    query_cross_entropy,
    query_focal_loss,
    query_labels,
)
from comastre.methods.mask2former.config import QueryLossConfig
from comastre.methods.mask2former.model import Prediction


def supervise(
    predicted: Prediction,
    targets: Targets,
    points: PointSource,
    config: QueryLossConfig,
    softmax_masks: bool = False,
    hidden: Tensor | None = None,
) -> dict[str, Tensor]:
    """The named, unweighted terms of the labels; those of weight 0 are left out.

    `hidden` (C + 1,) are classes that the data shows but does not label: a query without a mask may be one of them.
    """
    weights, terms = config.weights, {}
    costs = query_costs(predicted, targets, points.draw(config.matching.points), config, softmax_masks)
    assignment = assign(costs, targets)
    num_masks, by_weight, num_queries = _normalisers(assignment, targets, config.classification.no_object)
    if weights.classification:
        labels = query_labels(assignment, targets.labels, predicted.num_classes)  # (K, B, N)
        logs = class_log_probabilities(predicted.class_logits, hidden)
        own = config.classification
        terms["classification"] = (
            query_cross_entropy(logs, labels, own.no_object, by_weight)
            if own.loss == "cross_entropy"
            else query_focal_loss(logs, labels, own.alpha, own.gamma, num_queries)
        )
    if weights.mask_bce or weights.mask_dice:
        counts = PointCounts.of(config.masks)
        of_masks = matched_softmax_mask_losses if softmax_masks else matched_mask_losses
        bce, dice = of_masks(
            predicted.layers,
            targets,
            assignment,
            points.draw(counts.candidates),
            points.draw(counts.uniform),
            config.masks,
            num_masks,
        )
        # One sampling of points gives both; where only one of them is on, the other is dropped here.
        terms |= {"mask_bce": bce} if weights.mask_bce else {}
        terms |= {"mask_dice": dice} if weights.mask_dice else {}
    return terms


def query_costs(
    predicted: Prediction, targets: Targets, points: Tensor, config: QueryLossConfig, softmax_masks: bool = False
) -> Tensor:
    """Cost (K, B, N, G) of each pair of query and mask at K layers, on points (B, P, 2) shared by all masks."""
    matching = config.matching
    of_classes = class_scores_of(predicted.class_logits, targets.labels)  # (K, B, N, G)
    if softmax_masks:
        return softmax_mask_costs(predicted.layers, of_classes, targets, points)
    of_masks = mask_costs(predicted.layers, targets, points, matching.bce, matching.dice)
    return of_masks - matching.classification * of_classes


def _normalisers(assignment: Assignment, targets: Targets, no_object: float) -> Tensor:
    """(3,): masks, the weights of all queries, and queries, averaged over processes by one reduction."""
    counts = torch.tensor(
        [
            float(sum(targets.counts)),
            objectness_normaliser(targets.counts, assignment.num_queries, no_object),
            float(len(targets.counts) * assignment.num_queries),
        ]
    )
    device = assignment.query.device
    averaged = average_over_processes(counts.to(device, non_blocking=True))
    # Mask2Former never divides the mask losses by less than one; the weights are above 0 but for `no_object` 0.
    return torch.maximum(averaged, torch.tensor([1.0, 1e-6, 1.0]).to(device, non_blocking=True))
