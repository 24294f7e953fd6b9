"""From proposals to a label map, where statistics have a word: a proposal is new where they say so.

Else the trained model's word stands, bit for bit (docs/specification.md, Exact).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comastre.methods.comastre.inference import recognise_confident
from comastre.methods.exact.config import ExactInferenceConfig
from comastre.methods.exact.features import features_of
from comastre.methods.large_merge import Contest, merge_contest
from comastre.methods.merge import Merged
from comastre.nets.outputs import StageOne
from comastre.segmentation import Frame, ProposedMasks, Segmentation, Size, frames_of

if TYPE_CHECKING:
    from comastre.methods.exact.model import ExactSegmenter


@dataclass(frozen=True)
class Named:
    """What is said of the N proposals of B images."""

    objectness: Tensor
    """(B, N)."""
    class_scores: Tensor
    """(B, N, C): of trained classes as stage 2 gave them, of later ones 0 where the statistics do not say so."""
    class_index: Tensor
    """(B, N): the class of each, where it is recognised."""
    scores: Tensor
    """(B, N): what the merge goes by."""


def name_proposals(model: ExactSegmenter, stage_one: StageOne) -> Named:
    """Both words on every proposal, and which of them counts."""
    settings = model.config.inference
    assert isinstance(settings, ExactInferenceConfig)
    objectness, trained = recognise_confident(model, stage_one)  # (B, N), (B, N, C1)
    probability, class_index = trained.max(dim=-1)
    num_trained = trained.shape[-1]
    if model.discriminant.num_classes == num_trained:
        return Named(objectness, trained, class_index, objectness * probability)

    features, filled = features_of(stage_one.pixels, stage_one.final.mask_logits >= 0)
    odds = model.discriminant(features)  # (B, N, 1 + C)
    known, later = odds[..., : 1 + num_trained], odds[..., 1 + num_trained :]
    best, place = later.max(dim=-1)
    is_new = filled & (objectness > settings.alpha) & (best > known.amax(dim=-1) + settings.margin)
    # Where nothing at all is known, odds are minus infinity throughout and their softmax no number.
    shares = (odds / settings.temperature).softmax(dim=-1)[..., 1 + num_trained :]
    later_scores = torch.where(is_new[..., None], shares, 0.0)
    share = later_scores.gather(-1, place[..., None])[..., 0]
    return Named(
        objectness,
        torch.cat([trained, later_scores], dim=-1),
        torch.where(is_new, num_trained + place, class_index),
        objectness * torch.where(is_new, share, probability),
    )


@torch.no_grad()
def segment(
    model: ExactSegmenter,
    images: Tensor,
    padding: Tensor | None = None,
    sizes: Sequence[Size] | None = None,
    original_sizes: Sequence[Size] | None = None,
) -> list[Segmentation]:
    """Segment images (B, 3, H, W) in 0..1; the sizes are those of `comastre.inference.segment`."""
    stage_one = model.propose(images, padding, every_layer=False)
    named = name_proposals(model, stage_one)
    mask_logits = stage_one.final.mask_logits.float()
    return [
        _merge(model, named, mask_logits[row], row, size, frame)
        for row, (frame, size) in enumerate(frames_of(images, sizes, original_sizes))
    ]


def _merge(
    model: ExactSegmenter, named: Named, mask_logits: Tensor, row: int, size: Size, frame: Frame
) -> Segmentation:
    """One image: each pixel goes to the proposal with the largest score x mask probability."""
    settings = model.config.inference
    objectness, class_index = named.objectness[row], named.class_index[row]
    kept = (objectness > settings.alpha).nonzero().squeeze(1)  # (K,)
    merged = Merged.nothing(size, mask_logits.device)
    if len(kept):
        contest = Contest(mask_logits, kept, named.scores[row, kept], class_index[kept])
        merged = merge_contest(contest, size, frame, settings)
    proposals = ProposedMasks(
        objectness,
        named.class_scores[row],
        settings.alpha,
        mask_logits,
        size,
        settings.mask_threshold,
        frame,
        named=class_index,
    )
    return Segmentation(merged.label_map, merged.segment_map, merged.segments, proposals)
