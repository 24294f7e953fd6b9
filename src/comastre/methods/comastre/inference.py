"""From proposals to a label map: alpha filter, recognition, panoptic-style merge.

The rules: docs/specification.md, Inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comastre.methods.comastre.config import InferenceConfig
from comastre.methods.large_merge import Contest, merge_contest
from comastre.methods.merge import Merged
from comastre.nets.outputs import StageOne, take_queries
from comastre.segmentation import Frame, ProposedMasks, Segmentation, Size, frames_of, mask_probabilities

if TYPE_CHECKING:
    from comastre.methods.comastre.segmenter import Segmenter


@torch.no_grad()
def segment(
    model: Segmenter,
    images: Tensor,
    padding: Tensor | None = None,
    sizes: Sequence[Size] | None = None,
    original_sizes: Sequence[Size] | None = None,
) -> list[Segmentation]:
    """Segment images (B, 3, H, W) in 0..1.

    `sizes` are the parts of a padded batch that hold pixels; `original_sizes` those of the results where images were
    resized before.
    """
    settings = model.config.inference
    stage_one = model.propose(images, padding, every_layer=False)
    proposals = stage_one.final
    mask_logits = proposals.mask_logits.float()  # (B, N, h, w)
    objectness, class_scores = recognise_confident(model, stage_one)
    return [
        merge(mask_logits[image], objectness[image], class_scores[image], size, settings, frame)
        for image, (frame, size) in enumerate(frames_of(images, sizes, original_sizes))
    ]


def recognise_confident(model: Segmenter, stage_one: StageOne) -> tuple[Tensor, Tensor]:
    """Objectness (B, N) and class probabilities (B, N, C), which are 0 for proposals that are not recognised."""
    proposals, settings = stage_one.final, model.config.inference
    objectness = proposals.objectness_logits.float().sigmoid()  # (B, N)
    # Stage 2 sees confident proposals only: the batch's largest number of them, most confident first.
    confident = objectness > settings.alpha
    most = int(confident.sum(dim=1).max())
    chosen = objectness.topk(most, dim=1).indices  # (B, M)
    num_classes = model.class_decoder.num_classes
    class_scores = objectness.new_zeros(*objectness.shape, num_classes)
    if most and num_classes:
        embeddings = take_queries(proposals.embeddings, chosen)
        masked = model.config.class_decoder.masked_attention
        masks = take_queries(proposals.mask_logits.float(), chosen) if masked else None
        recognised = model.recognise(stage_one.pixels, embeddings, masks).class_logits.float().sigmoid()
        class_scores.scatter_(1, chosen[..., None].expand_as(recognised), recognised)
        class_scores *= confident[..., None]
    return objectness, class_scores


def name_classes(class_scores: Tensor, threshold: float) -> Tensor:
    """The best class (..., N) of proposals with scores (..., N, C); -1 where none has a probability of `threshold`."""
    if class_scores.shape[-1] == 0:
        return torch.full(class_scores.shape[:-1], -1, device=class_scores.device)
    probability, class_index = class_scores.max(dim=-1)
    return torch.where(probability >= threshold, class_index, -1)


def filled(label_map: Tensor, mask_logits: Tensor, weights: Tensor, frame: Frame | None) -> Tensor:
    """The label map (H, W) whose pixels without a class get the best one: argmax_c sum_k w_kc m_k.

    mask_logits (K, h, w) and weights (K, C); segments stay as they are.
    """
    height, width = label_map.shape
    probabilities = mask_probabilities(mask_logits, (height, width), frame)  # (K, H, W)
    best = torch.einsum("kc, khw -> chw", weights, probabilities).max(dim=0).indices + 1  # (H, W)
    return torch.where(label_map == 0, best, label_map)


def merge(
    mask_logits: Tensor,
    objectness: Tensor,
    class_scores: Tensor,
    size: Size,
    settings: InferenceConfig,
    frame: Frame | None = None,
) -> Segmentation:
    """Give each pixel of one image to the proposal with the largest score x mask probability.

    mask_logits (N, h, w), objectness (N,), class_scores (N, C); the result has `size`.
    """
    named = name_classes(class_scores, settings.class_threshold)  # (N,)
    confident = objectness > settings.alpha
    kept = (confident & (named >= 0)).nonzero().squeeze(1)  # (K,)
    merged = Merged.nothing(size, mask_logits.device)
    if len(kept):
        contest = Contest(mask_logits, kept, objectness[kept] * class_scores[kept].amax(dim=1), named[kept])
        merged = merge_contest(contest, size, frame, settings)
    if settings.every_pixel and confident.any() and class_scores.shape[1]:
        voters = confident.nonzero().squeeze(1)  # (V,): improbable classes have a say, too
        weights = objectness[voters][:, None] * class_scores[voters]  # (V, C)
        merged = replace(merged, label_map=filled(merged.label_map, mask_logits[voters], weights, frame))
    proposals = ProposedMasks(
        objectness, class_scores, settings.alpha, mask_logits, size, settings.mask_threshold, frame, named=named
    )
    return Segmentation(merged.label_map, merged.segment_map, merged.segments, proposals)
