"""Mask-based labels of the old model: what it sees beside the ground truth becomes ground truth (CoMFormer)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.data.dataset import IGNORE
from comastre.data.targets import Targets
from comastre.methods.comformer.config import PseudoLabelConfig
from comastre.methods.mask2former.model import Prediction


@torch.no_grad()
def with_pseudo_labels(
    targets: Targets, old: Prediction, labels: Tensor, config: PseudoLabelConfig, softmax_masks: bool
) -> Targets:
    """The targets and, appended to each image's, what the old model sees where nothing is labelled.

    `labels` (B, H, W) are the label maps, whose ignored pixels are nobody's. How many masks there are is asked of the
    device once for the candidates and once for the result.
    """
    scores, classes = old.class_logits[-1].float().softmax(-1).max(-1)  # (B, N)
    candidates = (classes < old.num_classes) & (scores > config.score)
    free = ~(targets.masks.any(dim=1) | (labels == IGNORE))  # (B, H, W)
    chosen = [row.nonzero().squeeze(1) for row in candidates.cpu()]
    masks, kept = [], []
    for image, queries in enumerate(chosen):
        queries = queries.to(scores.device, non_blocking=True)
        logits = old.layers[-1].mask_logits[image].float()
        found = _masks_of_image(logits, scores[image], queries, free[image], config, softmax_masks)
        masks.append(found[0])
        kept.append(found[1])
    # One copy for all images.
    flags = torch.cat(kept).cpu().split([len(queries) for queries in chosen])
    more_masks, more_labels = [], []
    for image, flag in enumerate(flags):
        places = flag.nonzero().squeeze(1).to(scores.device, non_blocking=True)
        queries = chosen[image].to(scores.device, non_blocking=True)[places]
        more_masks.append(masks[image][places])
        more_labels.append(classes[image][queries])
    return targets.extended(more_masks, more_labels)


def _masks_of_image(
    logits: Tensor, scores: Tensor, queries: Tensor, free: Tensor, config: PseudoLabelConfig, softmax_masks: bool
) -> tuple[Tensor, Tensor]:
    """Masks (K, H, W) of an image's candidate queries (K,), and which of them (K,) are whole enough to be labels."""
    if not len(queries):
        return free.new_zeros(0, *free.shape), free.new_zeros(0)
    resized = F.interpolate(logits[None], size=free.shape, mode="bilinear", align_corners=False)[0]  # (N, H, W)
    probabilities = (resized.softmax(0) if softmax_masks else resized.sigmoid())[queries]  # (K, H, W)
    winner = (probabilities * scores[queries][:, None, None]).argmax(dim=0)  # (H, W)
    left = (winner == torch.arange(len(queries), device=winner.device)[:, None, None]) & free  # (K, H, W)
    inside = probabilities >= config.mask_threshold
    labelled = left & inside
    areas = [part.flatten(1).sum(dim=1) for part in (left, inside, labelled)]
    whole_enough = (areas[2] > 0) & (areas[0] > config.overlap * areas[1])
    return labelled, whole_enough
