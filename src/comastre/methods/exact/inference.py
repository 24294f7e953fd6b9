"""From proposals to a label map, where statistics have a word: a proposal is new where they say so.

Else the trained model's word stands, bit for bit (docs/specification.md, Exact).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comastre.methods.comastre.inference import filled, name_classes, recognise_confident
from comastre.methods.exact.config import ExactInferenceConfig
from comastre.methods.exact.own_queries import OwnQueries
from comastre.methods.large_merge import Contest, merge_contest
from comastre.methods.merge import Merged
from comastre.nets.outputs import PixelEmbeddings, Proposals, StageOne
from comastre.segmentation import Frame, ProposedMasks, Segmentation, Size, frames_of

if TYPE_CHECKING:
    from comastre.methods.exact.model import ExactSegmenter


@dataclass(frozen=True)
class Named:
    """What is said of the N proposals of B images: the trained queries' first, then those of each later step."""

    mask_logits: Tensor
    """(B, N, h, w)."""
    objectness: Tensor
    """(B, N)."""
    class_scores: Tensor
    """(B, N, C): of trained classes as stage 2 gave them, of later ones 0 where the statistics do not say so."""
    class_index: Tensor
    """(B, N): the class of each, where it is recognised; -1 where nobody takes it for anything."""
    scores: Tensor
    """(B, N): what the merge goes by."""

    @classmethod
    def joined(cls, groups: Sequence[Named]) -> Named:
        """Several groups of proposals as one."""
        names = [field.name for field in fields(cls)]
        return cls(*(torch.cat([getattr(group, name) for group in groups], dim=1) for name in names))


@dataclass(frozen=True)
class Statistics:
    """What the statistics say of N proposals."""

    is_new: Tensor
    """(B, N) bool: a later class fits better than every trained one and than none."""
    shares: Tensor
    """(B, N, C2) of the later classes; 0 for proposals that are not new."""


def ask_statistics(model: ExactSegmenter, pixels: PixelEmbeddings, proposals: Proposals) -> Statistics:
    """Which proposals look like a later class."""
    settings = model.config.inference
    assert isinstance(settings, ExactInferenceConfig)
    first_later = 1 + model.class_decoder.num_classes
    features, filled = model.look_at(pixels, proposals.mask_logits >= 0)
    odds = model.discriminant(features)  # (B, N, 1 + C)
    known, later = odds[..., :first_later], odds[..., first_later:]
    is_new = filled & (later.amax(dim=-1) > known.amax(dim=-1) + settings.margin)
    shares = (odds / settings.temperature).softmax(dim=-1)[..., first_later:]
    # Where nothing at all is known, odds are minus infinity throughout and their softmax no number.
    return Statistics(is_new, torch.where(is_new[..., None], shares, 0.0))


def name_proposals(model: ExactSegmenter, stage_one: StageOne) -> Named:
    """Both words on every proposal, and which of them counts; then those of later steps' own queries."""
    proposals, pixels = stage_one.final, stage_one.pixels
    objectness, trained = recognise_confident(model, stage_one)  # (B, N), (B, N, C1)
    probability, best = trained.max(dim=-1)
    class_index = name_classes(trained, model.config.inference.class_threshold)
    mask_logits = proposals.mask_logits.float()
    if not model.later_tasks:
        return Named(mask_logits, objectness, trained, class_index, objectness * probability)
    found = ask_statistics(model, pixels, proposals)
    # With an old class of which nothing is known no new one can be compared: what is taken for it keeps its name.
    comparable = model.discriminant.known[best]
    confident = (objectness > model.config.inference.alpha) & comparable
    is_new, shares = found.is_new & confident, found.shares * confident[..., None]
    share, place = shares.max(dim=-1)
    named = Named(
        mask_logits,
        objectness,
        torch.cat([trained, shares], dim=-1),
        torch.where(is_new, trained.shape[-1] + place, class_index),
        objectness * torch.where(is_new, share, probability),
    )
    return Named.joined([named, *(_name_own(model, pixels, number) for number in range(len(model.own)))])


def _name_own(model: ExactSegmenter, pixels: PixelEmbeddings, number: int) -> Named:
    """What a later step's own queries find: statistics name it, and the step's classifier says how sure that is.

    What looks more like an old class, like none, or like one of another step is not theirs.
    """
    own = model.own[number]
    assert isinstance(own, OwnQueries)
    (proposals,) = own.propose(model.mask_decoder, pixels, every_layer=False)
    objectness = proposals.objectness_logits.float().sigmoid()
    masks = proposals.mask_logits if model.config.class_decoder.masked_attention else None
    logits = own.recognise(model.class_decoder, pixels, proposals.embeddings, masks).class_logits
    found = ask_statistics(model, pixels, proposals)
    first, num_classes = sum(model.later_tasks[:number]), model.later_tasks[number]
    place = found.shares.argmax(dim=-1) - first  # (B, N) among the step's classes
    taken = found.is_new & (objectness > model.config.inference.alpha) & (place >= 0) & (place < num_classes)
    place = place.clamp(0, num_classes - 1)
    probability = logits.float().sigmoid().gather(-1, place[..., None])[..., 0] * taken
    class_index = model.class_decoder.num_classes + first + place
    scores = torch.zeros(*objectness.shape, model.num_classes, device=objectness.device)
    scores.scatter_(-1, class_index[..., None], probability[..., None])
    class_index = torch.where(taken, class_index, -1)
    return Named(proposals.mask_logits.float(), objectness, scores, class_index, objectness * probability)


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
    return [
        _merge(model, named, row, size, frame)
        for row, (frame, size) in enumerate(frames_of(images, sizes, original_sizes))
    ]


def _merge(model: ExactSegmenter, named: Named, row: int, size: Size, frame: Frame) -> Segmentation:
    """One image: each pixel goes to the proposal with the largest score x mask probability."""
    settings = model.config.inference
    mask_logits, objectness, class_index = named.mask_logits[row], named.objectness[row], named.class_index[row]
    confident = objectness > settings.alpha
    kept = (confident & (class_index >= 0)).nonzero().squeeze(1)  # (K,)
    merged = Merged.nothing(size, mask_logits.device)
    if len(kept):
        contest = Contest(mask_logits, kept, named.scores[row, kept], class_index[kept])
        merged = merge_contest(contest, size, frame, settings)
    if settings.every_pixel and confident.any():
        voters = confident.nonzero().squeeze(1)
        weights = objectness[voters][:, None] * _votes(model, named.class_scores[row, voters], class_index[voters])
        merged = replace(merged, label_map=filled(merged.label_map, mask_logits[voters], weights, frame))
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


def _votes(model: ExactSegmenter, class_scores: Tensor, class_index: Tensor) -> Tensor:
    """Class scores (K, C) as they count where each pixel gets a class: what is new does not vote for a trained one."""
    trained = model.class_decoder.num_classes
    is_trained = torch.arange(class_scores.shape[1], device=class_scores.device) < trained  # (C,)
    return torch.where((class_index[:, None] >= trained) & is_trained, 0.0, class_scores)
