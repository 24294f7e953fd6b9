"""From proposals to a label map: alpha filter, recognition, panoptic-style merge.

The rules: docs/specification.md, Inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comastre.methods.comastre.config import InferenceConfig
from comastre.nets.outputs import take_queries
from comastre.segmentation import Frame, ProposedMasks, Segment, Segmentation, Size, mask_probabilities

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
    batch, _, height, width = images.shape
    sizes = list(sizes or [(height, width)] * batch)
    results = list(original_sizes or sizes)
    settings = model.config.inference
    stage_one = model.propose(images, padding, every_layer=False)
    proposals = stage_one.final
    objectness = proposals.objectness_logits.float().sigmoid()  # (B, N)

    # Stage 2 sees confident proposals only: the batch's largest number of them, most confident first.
    confident = objectness > settings.alpha
    most = int(confident.sum(dim=1).max())
    chosen = objectness.topk(most, dim=1).indices  # (B, M)
    class_scores = objectness.new_zeros(*objectness.shape, model.num_classes)
    if most and model.num_classes:
        embeddings = take_queries(proposals.embeddings, chosen)
        masks = take_queries(proposals.mask_logits, chosen) if model.config.class_decoder.masked_attention else None
        recognised = model.recognise(stage_one.pixels, embeddings, masks).class_logits.float().sigmoid()
        class_scores.scatter_(1, chosen[..., None].expand_as(recognised), recognised)
        class_scores *= confident[..., None]

    mask_logits = proposals.mask_logits.float()
    return [
        merge(
            mask_logits[image],
            objectness[image],
            class_scores[image],
            results[image],
            settings,
            Frame((height, width), sizes[image]),
        )
        for image in range(batch)
    ]


def merge(
    mask_logits: Tensor,
    objectness: Tensor,
    class_scores: Tensor,
    size: Size,
    settings: InferenceConfig,
    frame: Frame | None = None,
) -> Segmentation:
    """Give each pixel of one image to the proposal with the largest score x mask probability.

    mask_logits (N, h, w), objectness (N,), class_scores (N, C); the result has `size`. A proposal gets the pixels that
    it wins inside its own mask, if what it has kept is at least `overlap` of that mask; of equal proposals the first
    wins.
    """
    label_map = torch.zeros(size, dtype=torch.long, device=mask_logits.device)
    segment_map = torch.zeros_like(label_map)
    kept = (objectness > settings.alpha).nonzero().squeeze(1)  # (K,)
    segments: list[Segment] = []
    if len(kept) and class_scores.shape[1]:
        probability, class_index = class_scores[kept].max(dim=1)
        scores = objectness[kept] * probability
        masks = mask_probabilities(mask_logits[kept], size, frame)  # (K, H, W)
        winner = (masks * scores[:, None, None]).argmax(dim=0)  # (H, W)
        inside = masks >= settings.mask_threshold  # (K, H, W)
        mine = inside.gather(0, winner[None]).squeeze(0)  # (H, W): the pixel lies in its winner's own mask
        areas = torch.bincount(winner[mine], minlength=len(kept))
        whole = inside.flatten(1).sum(dim=1)
        # Mask2Former also counts what a proposal wins outside its own mask, so that a share may exceed 1.
        won = torch.bincount(winner.flatten(), minlength=len(kept)) if settings.merge == "mask2former" else areas
        # In Python's double precision, so that 4 of 5 pixels are 0.8 of a mask.
        shares = [area / max(total, 1) for area, total in zip(won.tolist(), whole.tolist(), strict=True)]
        accepted = (areas > 0) & torch.tensor([share >= settings.overlap for share in shares], device=areas.device)
        numbers = torch.where(accepted, accepted.cumsum(0), 0)
        segment_map = torch.where(mine, numbers[winner], 0)
        label_map = torch.where(segment_map > 0, class_index[winner] + 1, 0)
        columns = (kept[accepted], class_index[accepted], scores[accepted], areas[accepted])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        segments = [
            Segment(index + 1, score, area, number, segment_map, query)
            for number, (query, index, score, area) in enumerate(rows, start=1)
        ]
    proposals = ProposedMasks(
        objectness, class_scores, settings.alpha, mask_logits, size, settings.mask_threshold, frame
    )
    return Segmentation(label_map, segment_map, tuple(segments), proposals)
