"""From queries to a label map: panoptic-style, where masks compete, or dense (docs/specification.md, Mask2Former)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comastre.enlarging import strips
from comastre.methods.large_merge import Contest, merge_contest
from comastre.methods.mask2former.config import QueryInferenceConfig
from comastre.methods.merge import Merged
from comastre.segmentation import Frame, ProposedMasks, Segmentation, Size, frames_of

if TYPE_CHECKING:
    from comastre.methods.mask2former.model import Mask2Former


@torch.no_grad()
def segment(
    model: Mask2Former,
    images: Tensor,
    padding: Tensor | None = None,
    sizes: Sequence[Size] | None = None,
    original_sizes: Sequence[Size] | None = None,
) -> list[Segmentation]:
    """Segment images (B, 3, H, W) in 0..1.

    `sizes` are the parts of a padded batch that hold pixels; `original_sizes` those of the results where images were
    resized before.
    """
    predicted = model(images, padding, every_layer=False)
    mask_logits = predicted.layers[-1].mask_logits.float()
    class_logits = predicted.class_logits[-1].float()
    softmax = model.config.mask_decoder.softmax_masks
    return [
        label(mask_logits[image], class_logits[image], size, model.config.inference, frame, softmax)
        for image, (frame, size) in enumerate(frames_of(images, sizes, original_sizes))
    ]


def label(
    mask_logits: Tensor,
    class_logits: Tensor,
    size: Size,
    settings: QueryInferenceConfig,
    frame: Frame | None = None,
    softmax: bool = False,
) -> Segmentation:
    """What one image shows: mask_logits (N, h, w), class_logits (N, C + 1); the result has `size`.

    A query's objectness is the probability that it is of any class.
    """
    probabilities = class_logits.softmax(-1)  # (N, C + 1)
    of_classes = probabilities[:, :-1]
    proposals = ProposedMasks(
        1 - probabilities[:, -1],
        of_classes,
        0.5,  # surer of some class than of none
        mask_logits,
        size,
        settings.mask_threshold,
        frame,
        softmax,
    )
    if settings.style == "semantic":
        confidence = mask_logits.new_empty(size)
        winner = torch.empty(size, dtype=torch.long, device=mask_logits.device)
        for rows, logits in strips(mask_logits, size, frame):
            masks = logits.softmax(0) if softmax else logits.sigmoid()  # (N, t, W)
            scores = torch.einsum("nc, nhw -> chw", of_classes, masks)
            confidence[rows], winner[rows] = scores.max(dim=0)
        dense = Segmentation.of_labels(winner + 1, confidence.clamp(max=1))
        return Segmentation(dense.label_map, dense.segment_map, dense.segments, proposals)
    scores, classes = probabilities.max(dim=-1)
    kept = ((classes < of_classes.shape[1]) & (scores > settings.score)).nonzero().squeeze(1)  # (K,)
    if len(kept):
        contest = Contest(mask_logits, kept, scores[kept], classes[kept], softmax)
        merged = merge_contest(contest, size, frame, settings, settings.stuff)
    else:
        merged = Merged.nothing(size, mask_logits.device)
    return Segmentation(merged.label_map, merged.segment_map, merged.segments, proposals)
