"""Distillation of new pixels towards those old classes that their class resembles (REMINDER)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.losses.reduce import mean_over

_FLOOR = 1e-7  # of the targets


def class_similarity(batch_prototypes: Tensor, prototypes: Tensor, delta: float) -> Tensor:
    """(N, K): how much each of N new classes (N, C) resembles each of K old ones (K, C), by cosines.

    A softmax over old classes, in which shares below `delta` / K are set to 0.
    """
    with torch.autocast(prototypes.device.type, enabled=False):  # products would fall to half precision
        cosines = F.normalize(batch_prototypes, dim=1) @ F.normalize(prototypes, dim=1).T
    shares = cosines.softmax(dim=1)
    return shares.masked_fill(shares < delta / shares.shape[1], 0.0)


def similarity_distillation(
    logits: Tensor, old_logits: Tensor, labels: Tensor, similarity: Tensor, temperature: float
) -> Tensor:
    """T^2 times the cross-entropy of old probabilities weighed by similarity and new ones of old classes.

    `logits` (B, K + N, H, W), `old_logits` (B, K, H, W), `similarity` (N, K). Mean over pixels (B, H, W) that are
    labelled as a new class; all others do not count.
    """
    num_old, num_new = old_logits.shape[1], len(similarity)
    new = (labels >= num_old) & (labels < num_old + num_new)
    weight = similarity[torch.where(new, labels - num_old, 0)].movedim(3, 1)  # (B, K, H, W)
    targets = (weight * (old_logits / temperature).softmax(dim=1) + _FLOOR).detach()
    per_pixel = -(targets * torch.log_softmax(logits[:, :num_old] / temperature, dim=1)).sum(dim=1)
    return temperature**2 * mean_over(per_pixel, new)


@torch.no_grad()
def upsampled_class_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sums (K, C) of each class's features (B, C, h, w), resized bilinearly with aligned corners to labels (B, H, W).

    And the pixels of each class, (K,). The features are never resized, which would be a map of all channels per pixel:
    the masks of classes are, by the transposed resizing.
    """
    sums = features.new_zeros(num_classes, features.shape[1])
    counts = torch.zeros(num_classes, dtype=torch.long, device=labels.device)
    classes = torch.arange(num_classes, device=labels.device)[:, None, None]
    for image, truth in zip(features, labels, strict=True):
        masks = truth[None] == classes  # (K, H, W)
        counts += masks.sum(dim=(1, 2))
        with torch.enable_grad():
            small = image.new_zeros(1, num_classes, *image.shape[1:], requires_grad=True)
            large = F.interpolate(small, size=truth.shape, mode="bilinear", align_corners=True)
        (weights,) = torch.autograd.grad(large, small, masks[None].to(image.dtype))  # (1, K, h, w)
        with torch.autocast(image.device.type, enabled=False):
            sums += torch.einsum("khw, chw -> kc", weights[0], image)
    return sums, counts
