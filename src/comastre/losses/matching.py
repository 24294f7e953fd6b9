"""Which query stands for which ground-truth mask: Hungarian matching over masks (docs/specification.md, Matching)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.config.sections import MatchingConfig
from comastre.data.targets import Targets
from comastre.errors import UserError
from comastre.losses.points import sample_at
from comastre.nets.mask_features import SampledFeatures
from comastre.nets.outputs import Proposals, QueryMasks
from comastre.nets.precision import upcast


class NonFiniteCost(UserError):  # noqa: N818 (it names what was found)
    """A matching cost is NaN or infinite: the model's predictions have diverged."""


def pairwise_bce(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy (B, N, G), mean over points, of each logit row (B, N, P) against each target (B, G, P)."""
    # BCE(x, t) = softplus(x) - x t, so that all pairs are one matrix product.
    return F.softplus(logits).mean(-1)[..., None] - torch.einsum("bnp,bgp->bng", logits, targets) / logits.shape[-1]


def pairwise_dice(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Dice distance (B, N, G), smoothing 1, of each mask (B, N, P) in 0..1 against each target row (B, G, P)."""
    overlap = torch.einsum("bnp,bgp->bng", probabilities, targets)
    areas = probabilities.sum(-1)[..., None] + targets.sum(-1)[:, None]  # (B, N, G)
    return 1 - (2 * overlap + 1) / (areas + 1)


def logits_at(layers: Sequence[QueryMasks], points: Tensor) -> Iterator[Tensor]:
    """Mask logits (B, N, P), in full precision, of each layer in turn at points (B, P, 2) of the image."""
    sampled: SampledFeatures | None = None
    for layer in layers:
        if isinstance(layer.masks, Tensor):
            yield sample_at(layer.masks, points)
            continue
        if sampled is None or sampled.features is not layer.masks.features:  # all layers of a model share one
            sampled = layer.masks.features.sampled(points)
        yield sampled.logits(layer.masks.kernels)


@torch.no_grad()
def matching_costs(layers: Sequence[Proposals], targets: Targets, points: Tensor, config: MatchingConfig) -> Tensor:
    """Cost (K, B, N, G) of each pair of query and mask at K layers, on points (B, P, 2) shared by all masks."""
    costs = mask_costs(layers, targets, points, config.bce, config.dice)
    if config.objectness_cost:
        objectness = torch.stack([upcast(layer.objectness_logits) for layer in layers]).sigmoid()  # (K, B, N)
        costs = costs - config.objectness_cost * objectness[..., None]
    return costs


@torch.no_grad()
def mask_costs(layers: Sequence[QueryMasks], targets: Targets, points: Tensor, bce: float, dice: float) -> Tensor:
    """What of the cost (K, B, N, G) masks decide: binary cross-entropy and dice distance, with these weights."""
    costs = []
    # Matrix products would fall to half precision under autocast, too coarse to rank near-duplicate proposals.
    with torch.autocast(points.device.type, enabled=False):
        truth = sample_at(targets.masks, points)  # (B, G, P)
        for logits in logits_at(layers, points):  # (B, N, P)
            at_points = truth.to(logits.dtype)
            costs.append(bce * pairwise_bce(logits, at_points) + dice * pairwise_dice(logits.sigmoid(), at_points))
    return torch.stack(costs)


@torch.no_grad()
def class_scores_of(class_logits: Tensor, labels: Tensor) -> Tensor:
    """Probability (K, B, N, G) that queries with logits (K, B, N, C) give to the class of each label (B, G)."""
    scores = upcast(class_logits).softmax(-1)
    return scores.gather(-1, labels[None, :, None].expand(*scores.shape[:3], -1))


@torch.no_grad()
def softmax_mask_costs(layers: Sequence[QueryMasks], class_scores: Tensor, targets: Targets, points: Tensor) -> Tensor:
    """Cost (K, B, N, G) where masks are a softmax over the queries: the negative harmonic mean of two scores.

    One is the probability of the class (K, B, N, G), the other the dice score of the mask (CoMFormer).
    """
    costs = []
    with torch.autocast(points.device.type, enabled=False):
        truth = sample_at(targets.masks, points)  # (B, G, P)
        for layer, of_class in zip(layers, class_scores, strict=True):
            masks = sample_at(upcast(layer.mask_logits).softmax(1), points)  # (B, N, P)
            of_mask = 1 - pairwise_dice(masks, truth.to(masks.dtype))  # above 0, by its smoothing
            costs.append(-2 * of_class * of_mask / (of_class + of_mask))
    return torch.stack(costs)


@torch.no_grad()
def on_labelled(proposals: Proposals, targets: Targets, points: Tensor, ignored: Tensor | None = None) -> Tensor:
    """Which masks (B, N) lie on ground truth by more than half of their area, on points (B, P, 2) of the image.

    Pixels of which nothing is known, `ignored` (B, H, W), count as if they were labelled.
    """
    (logits,) = logits_at([proposals], points)
    inside = logits > 0  # (B, N, P)
    labelled = (sample_at(targets.masks, points) > 0.5).any(dim=1)  # (B, P)
    if ignored is not None:
        labelled = labelled | (sample_at(ignored[:, None], points)[:, 0] > 0.5)
    # Counts, which are exact under autocast, too.
    return 2 * (inside & labelled[:, None]).sum(-1) > inside.sum(-1)


@dataclass(frozen=True)
class Assignment:
    """The query of each ground-truth mask at K layers."""

    query: Tensor
    """(K, B, G) long; 0 where `valid` is false, so that it can always index."""
    valid: Tensor
    """(K, B, G) bool: false in padding rows and for masks that got no query because there are more masks."""
    num_queries: int
    host_query: Tensor
    """(K, B, G) long on the host, -1 where no query: what a caller may read without asking the device."""
    extra: Tensor | None = None
    """The host's copy of the tensor that came along with the costs."""

    @property
    def matched(self) -> Tensor:
        """(K, B, N) bool on the device: which queries have a mask; the rest is unmatched."""
        return _occupied(torch.where(self.valid, self.query, self.num_queries), self.num_queries)

    @property
    def matched_on_host(self) -> Tensor:
        """`matched`, computed on the host."""
        places = torch.where(self.host_query >= 0, self.host_query, self.num_queries)
        return _occupied(places, self.num_queries)


def _occupied(query: Tensor, num_queries: int) -> Tensor:
    """(K, B, N) bool, true at the places in `query` (K, B, G); place N, for rows without a query, is cut off."""
    places = torch.zeros(*query.shape[:2], num_queries + 1, dtype=torch.bool, device=query.device)
    return places.scatter(2, query, True)[..., :num_queries]


def assign(costs: Tensor, targets: Targets, extra: Tensor | None = None) -> Assignment:
    """The cheapest assignment per layer and image for costs (K, B, N, G).

    One device-to-host copy carries all costs and `extra` (any shape, such as the old model's objectness), and one copy
    carries the assignment back. With more masks than queries the cheapest min(N, G) pairs are kept.
    """
    from scipy.optimize import linear_sum_assignment  # here, because predictions do without its long import

    parts = [costs.detach()] if extra is None else [costs.detach(), extra.detach()]
    on_host = torch.cat([part.to(costs.dtype).flatten() for part in parts]).cpu()
    host_costs = on_host[: costs.numel()].reshape(costs.shape).numpy()  # (K, B, N, G)
    host_extra = None if extra is None else on_host[costs.numel() :].reshape(extra.shape)

    num_layers, num_images, num_queries, num_masks = costs.shape
    query = np.full((num_layers, num_images, num_masks), -1, dtype=np.int64)
    for image, count in enumerate(targets.counts):
        for layer in range(num_layers):
            cost = host_costs[layer, image, :, :count]
            if not np.isfinite(cost).all():
                raise NonFiniteCost(
                    f"the matching costs of image {targets.image_ids[image]!r} at decoder prediction {layer} of "
                    f"{num_layers} are NaN or infinite, so the model has diverged: lower "
                    "optimiser.learning_rate or use training.precision 32-true"
                )
            chosen_queries, chosen_masks = linear_sum_assignment(cost)
            query[layer, image, chosen_masks] = chosen_queries

    host_query = torch.from_numpy(query)
    on_device = host_query.to(costs.device)
    return Assignment(on_device.clamp(min=0), on_device >= 0, num_queries, host_query, host_extra)
