"""Features of the classes of a batch, and how they are held together, apart and in their place (SDR).

Features are (B, C, h, w), labels (B, h, w) at the same size: 0 background, 255 ignored. Sums and counts of classes are
over the batch of all processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.distributed import (
    average_over_processes,
    max_over_processes,
    sum_for_gradient,
    sum_over_processes,
)
from comastre.losses.reduce import mean_over

_INACTIVE = 1e-3  # sum of a location's features, of which the largest of its class is 1, below which nothing is active


@dataclass(frozen=True)
class ClassSums:
    """Features of each class, added up over a batch."""

    sums: Tensor
    """(K, C)."""
    counts: Tensor
    """(K,) long."""

    @property
    def present(self) -> Tensor:
        """(K,) bool."""
        return self.counts > 0

    @property
    def means(self) -> Tensor:
        """(K, C); zeros of a class that is not there."""
        return self.sums / self.counts.clamp(min=1)[:, None]


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> ClassSums:
    """Sums over the pixels of each class, in all processes; every process gets the gradient of its own pixels."""
    counted = labels < num_classes
    place = torch.where(counted, labels, num_classes).flatten()  # what is ignored goes to a row of its own
    flat = features.movedim(1, 3).flatten(0, 2)  # (B h w, C)
    sums = flat.new_zeros(num_classes + 1, flat.shape[1]).index_add(0, place, flat)[:-1]
    ones = counted.flatten().long()
    counts = ones.new_zeros(num_classes + 1).index_add(0, place, ones)[:-1]
    return ClassSums(sum_for_gradient(sums), sum_over_processes(counts))


def prototype_matching(found: ClassSums, prototypes: Tensor, known: Tensor) -> Tensor:
    """Squared distance of a class's mean feature and its prototype (K, C), mean over channels and present classes.

    Only of classes that are `known`, (K,) bool.
    """
    distance = (found.means - prototypes).square().mean(dim=1)  # (K,)
    return _mean_where(distance, found.present & known)


def attraction(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Squared distance of features and their class's prototype, mean over its pixels, then over present classes."""
    num_classes = len(prototypes)
    own = labels.clamp(max=num_classes - 1)
    distance = (features.movedim(1, 3) - prototypes[own]).square().mean(dim=3)  # (B, h, w)
    counted = (labels < num_classes) & known[own]
    counts = counted.new_zeros(num_classes, dtype=torch.long)
    counts = counts.index_add(0, own.flatten(), counted.flatten().long())
    averaged = average_over_processes(counts.float())  # (K,)
    present = (averaged > 0).sum().clamp(min=1)
    weight = counted / (averaged[own].clamp(min=1e-6) * present)
    return (distance * weight).sum()


def repulsion(found: ClassSums) -> Tensor:
    """One over the distance of two classes' mean features, mean over all pairs of present classes that differ."""
    means, present = found.means, found.present
    squares = (means[:, None] - means[None]).square().sum(dim=2)  # (K, K)
    apart = present[:, None] & present[None] & (squares.detach() > 0)
    return _mean_where(torch.where(apart, squares, 1.0).rsqrt(), apart)


def sparsity(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """sum(exp f) / sum(f) over the channels of a location, whose features are shares of the largest of its class.

    The largest value is taken as a number without gradient. Negative features count as
    0, and locations without any active one are left out. Mean over all others.
    """
    features = features.relu()
    place = torch.where(labels < num_classes, labels, num_classes)  # (B, h, w)
    strongest = features.detach().amax(dim=1).flatten()  # of each location
    largest = strongest.new_zeros(num_classes + 1).scatter_reduce(0, place.flatten(), strongest, "amax")
    largest = max_over_processes(largest)
    shares = features / largest[place].clamp(min=1e-6)[:, None]  # (B, C, h, w)
    total = shares.sum(dim=1)
    active = (total.detach() > _INACTIVE) & (labels < num_classes)
    ratio = shares.exp().sum(dim=1) / torch.where(active, total, 1.0)
    return mean_over(torch.where(active, ratio, 0.0), active)


def shrink_labels(labels: Tensor, like: Tensor) -> Tensor:
    """Labels (B, H, W) at the size of a map (B, C, h, w), by their nearest values."""
    return F.interpolate(labels[:, None].float(), size=like.shape[-2:], mode="nearest")[:, 0].long()


def _mean_where(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of the chosen values, which are the same in every process; an exact zero where none is chosen."""
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


# --- as the public code has it ---------------------------------------------------------------------------------------
# It reads the features of a class, whose channels lie one after the other, as if locations did; and it divides by the
# number of classes once per class. One process only, and the host waits for the device.


def public_class_sums(features: Tensor, labels: Tensor, num_classes: int) -> ClassSums:
    """Sums over what the public code takes for the locations of a class, (C, n): right for a single image."""
    channels = features.shape[1]
    sums = torch.zeros(num_classes, channels, dtype=features.dtype, device=features.device)
    counts = torch.zeros(num_classes, dtype=torch.long, device=features.device)
    rows = []
    for label in range(num_classes):
        taken = _taken(features, labels, label).view(channels, -1)
        rows.append(taken.sum(dim=1))
        counts[label] = taken.shape[1]
    return ClassSums(sums + torch.stack(rows), counts)


def public_matching(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """The distance of prototypes and means over rows of (n, C), in which channels and locations are mixed."""
    present = [label for label in labels.unique().tolist() if 0 < label < len(prototypes)]
    total = features.sum() * 0
    for label in present:
        mean = _taken(features, labels, label).view(-1, features.shape[1]).mean(dim=0)
        total = total + (mean - prototypes[label]).square().mean() / len(present)
    return total


def public_attraction(features: Tensor, labels: Tensor, prototypes: Tensor) -> Tensor:
    """The distance of features read as (C, n) and prototypes, where early classes are divided by their number often."""
    present = [label for label in labels.unique().tolist() if 0 < label < len(prototypes)]
    total = features.sum() * 0
    for label in present:
        taken = _taken(features, labels, label).view(features.shape[1], -1)
        total = (total + (taken - prototypes[label][:, None]).square().mean()) / len(present)
    return total


def _taken(features: Tensor, labels: Tensor, label: int) -> Tensor:
    return features[(labels == label)[:, None].expand_as(features)]
