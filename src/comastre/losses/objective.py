"""One training step's loss terms at any step t: the one place that puts matching, losses and distillation together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from comastre.config import LossConfig, LossWeights
from comastre.losses.classification import auxiliary_loss, cross_entropy_loss, focal_loss, negatives_loss
from comastre.losses.distillation import (
    class_distillation,
    mask_distillation,
    position_distillation,
    proposal_weights,
    score_distillation,
)
from comastre.losses.masks import matched_mask_losses, take_queries
from comastre.losses.matching import Assignment, assign, matching_costs
from comastre.losses.objectness import objectness_loss, objectness_normaliser
from comastre.losses.points import PointCounts, PointSource
from comastre.losses.reduce import average_over_processes
from comastre.losses.targets import Targets
from comastre.model.class_decoder import Recognition
from comastre.model.outputs import StageOne
from comastre.model.segmenter import Segmenter


@dataclass(frozen=True)
class Terms:
    """Named, unweighted loss terms; None where a term is switched off or has no meaning at this step."""

    objectness: Tensor | None = None
    mask_bce: Tensor | None = None
    mask_dice: Tensor | None = None
    classification: Tensor | None = None
    score_kd: Tensor | None = None
    mask_kd_bce: Tensor | None = None
    mask_kd_dice: Tensor | None = None
    position_kd: Tensor | None = None
    unmatched_class_kd: Tensor | None = None
    matched_class_kd: Tensor | None = None
    auxiliary: Tensor | None = None
    negatives_for_new: Tensor | None = None
    negatives_for_old: Tensor | None = None

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """The terms that are on, in order."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                yield field.name, value


def term_weights(weights: LossWeights) -> dict[str, float]:
    """The factor of every term in the total: a distillation term carries the weight of the loss that it mirrors."""
    return {
        "objectness": weights.objectness,
        "mask_bce": weights.mask_bce,
        "mask_dice": weights.mask_dice,
        "classification": weights.classification,
        "score_kd": weights.score_kd * weights.objectness,
        "mask_kd_bce": weights.mask_kd * weights.mask_bce,
        "mask_kd_dice": weights.mask_kd * weights.mask_dice,
        "position_kd": weights.position_kd,
        "unmatched_class_kd": weights.unmatched_class_kd * weights.classification,
        "matched_class_kd": weights.matched_class_kd * weights.classification,
        "auxiliary": weights.auxiliary,
        "negatives_for_new": weights.negatives_for_new * weights.classification,
        "negatives_for_old": weights.negatives_for_old * weights.classification,
    }


def total_loss(terms: Terms, weights: LossWeights) -> Tensor:
    """L = L_seg + L_kd + L_cls-aux."""
    factors = term_weights(weights)
    return torch.stack([factors[name] * value for name, value in terms.items()]).sum()


@dataclass(frozen=True)
class Switches:
    """Which terms are computed at this step: switched on, with a weight, and with an old model where they need one."""

    objectness: bool
    masks: bool
    classification: bool
    score_kd: bool
    mask_kd: bool
    position_kd: bool
    unmatched_class_kd: bool
    matched_class_kd: bool
    auxiliary: bool
    negatives_for_new: bool
    negatives_for_old: bool

    @classmethod
    def of(cls, config: LossConfig, later: bool) -> Switches:
        """`later` is true from the second task on."""
        weights, kept, negatives = config.weights, config.distillation, config.classification
        return cls(
            objectness=weights.objectness > 0,
            masks=weights.mask_bce > 0 or weights.mask_dice > 0,
            classification=weights.classification > 0,
            score_kd=later and kept.score and weights.score_kd > 0,
            mask_kd=later and kept.mask and weights.mask_kd > 0,
            position_kd=later and kept.position and weights.position_kd > 0,
            unmatched_class_kd=later and kept.unmatched_classes and weights.unmatched_class_kd > 0,
            # Eq. of L_cls-kd^m; the negatives take its place (SPEC section 9).
            matched_class_kd=later
            and kept.matched_classes
            and not negatives.negatives_for_old
            and weights.matched_class_kd > 0,
            auxiliary=later and kept.auxiliary and weights.auxiliary > 0,
            negatives_for_new=later and negatives.negatives_for_new and weights.negatives_for_new > 0,
            negatives_for_old=later and negatives.negatives_for_old and weights.negatives_for_old > 0,
        )

    @property
    def objectness_kd(self) -> bool:
        return self.score_kd or self.mask_kd or self.position_kd

    @property
    def old_objects(self) -> bool:
        """Terms that look at unmatched proposals which the old model is sure of."""
        return self.unmatched_class_kd or self.auxiliary or self.negatives_for_new

    @property
    def old_model(self) -> bool:
        return self.objectness_kd or self.old_objects or self.matched_class_kd

    @property
    def old_logits(self) -> bool:
        """Terms that look at the new model's old classes."""
        return self.unmatched_class_kd or self.matched_class_kd or self.negatives_for_old

    @property
    def recognition(self) -> bool:
        return self.classification or self.old_logits or self.auxiliary or self.negatives_for_new


@dataclass(frozen=True)
class Normalisers:
    """What the terms divide by, averaged over processes by one reduction, known on the host before it."""

    masks: Tensor
    objectness: Tensor
    matched: Tensor
    unmatched: Tensor
    images_with_unmatched: Tensor
    old_objects: Tensor
    recognised: Tensor


def compute_terms(
    model: Segmenter,
    old_model: Segmenter | None,
    images: Tensor,
    padding: Tensor | None,
    targets: Targets,
    points: PointSource,
    config: LossConfig,
    annotated_from: int | None = None,
) -> Terms:
    """The terms of SPEC section 3 for one batch; the old model, where a term needs it, runs once without gradient.

    Labels are learned over the classes from `annotated_from` on: the newest task's, unless past classes stay annotated.
    """
    later = len(model.tasks) > 1
    switches = Switches.of(config, later and old_model is not None)
    num_old = model.num_classes - model.tasks[-1]
    first_label = num_old if annotated_from is None else annotated_from

    stage_one = model.propose(images, padding)
    old_stage_one = None
    if old_model is not None and switches.old_model:
        with torch.no_grad():
            old_stage_one = old_model.propose(images, padding, every_layer=config.distillation.all_layers)

    costs = matching_costs(stage_one.layers, targets, points.draw(config.matching.points), config.matching)
    old_scores = None if old_stage_one is None else old_stage_one.final.objectness_logits.sigmoid()
    assignment = assign(costs, targets, old_scores)
    old_objects = _find_old_objects(assignment, config.distillation.alpha if switches.old_objects else None)
    normalisers = _count(assignment, targets, old_objects, config.weights.no_object, images.device)

    counts = PointCounts.of(config.masks)
    candidates, uniform = points.draw(counts.candidates), points.draw(counts.uniform)
    terms: dict[str, Tensor] = {}

    # L_obj (Eq. 1), at each of the L + 1 predictions.
    if switches.objectness:
        logits = torch.stack([layer.objectness_logits for layer in stage_one.layers])  # (L + 1, B, N)
        terms["objectness"] = objectness_loss(
            logits, assignment.matched, config.weights.no_object, normalisers.objectness
        )
    if switches.masks:
        terms["mask_bce"], terms["mask_dice"] = matched_mask_losses(
            stage_one.layers, targets, assignment, candidates, uniform, config.masks, normalisers.masks
        )
    # L_obj-kd (Eq. 3 to 5).
    if old_stage_one is not None and switches.objectness_kd:
        terms |= _distil_objectness(
            stage_one, old_stage_one, assignment, candidates, uniform, config, switches, normalisers
        )
    # L_cls, L_cls-kd and L_cls-aux.
    if switches.recognition:
        terms |= _recognise(
            model,
            old_model,
            stage_one,
            old_stage_one,
            targets,
            assignment,
            old_objects,
            config,
            switches,
            normalisers,
            num_old,
            first_label,
        )
    return Terms(**terms)


@dataclass(frozen=True)
class Rows:
    """Some queries of each image, padded to the same number."""

    query: Tensor
    """(B, U) long; 0 in padding."""
    valid: Tensor
    """(B, U) bool."""
    count: int
    """Valid rows, known on the host."""


def _find_old_objects(assignment: Assignment, alpha: float | None) -> Rows:
    """Unmatched queries that the old model is sure of, found on the host, which has the scores already."""
    device = assignment.query.device
    batch = assignment.query.shape[1]
    if alpha is None or assignment.extra is None:
        return Rows(
            torch.zeros(batch, 0, dtype=torch.long, device=device),
            torch.zeros(batch, 0, dtype=torch.bool, device=device),
            0,
        )
    chosen = ~assignment.matched_on_host[-1] & (assignment.extra > alpha)  # (B, N)
    most = int(chosen.sum(dim=1).max())
    valid, query = chosen.to(torch.uint8).topk(most, dim=1)
    valid = valid.bool()
    query = torch.where(valid, query, 0)
    return Rows(query.to(device, non_blocking=True), valid.to(device, non_blocking=True), int(valid.sum()))


def _count(
    assignment: Assignment, targets: Targets, old_objects: Rows, no_object: float, device: torch.device
) -> Normalisers:
    matched = assignment.matched_on_host[-1]  # (B, N)
    counts = torch.tensor(
        [
            float(sum(targets.counts)),
            objectness_normaliser(targets.counts, assignment.num_queries, no_object),
            float(matched.sum()),
            float((~matched).sum()),
            float((~matched).any(dim=1).sum()),
            float(old_objects.count),
            float(matched.sum()) + old_objects.count,
        ]
    )
    averaged = average_over_processes(counts.to(device, non_blocking=True))
    # Mask2Former never divides the mask losses by less than one; the other sums are zero where their count is.
    floors = torch.tensor([1.0, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6]).to(device, non_blocking=True)
    return Normalisers(*torch.maximum(averaged, floors))


def _distil_objectness(
    stage_one: StageOne,
    old: StageOne,
    assignment: Assignment,
    candidates: Tensor,
    uniform: Tensor,
    config: LossConfig,
    switches: Switches,
    normalisers: Normalisers,
) -> dict[str, Tensor]:
    """Eq. 3 to 5 on the unmatched queries of the last prediction, or of all of them, summed."""
    sums: dict[str, Tensor] = {}
    number = len(old.layers)
    unmatched_of = ~assignment.matched[-number:]
    for new_layer, old_layer, unmatched in zip(stage_one.layers[-number:], old.layers, unmatched_of, strict=True):
        parts: dict[str, Tensor] = {}
        if switches.score_kd:
            parts["score_kd"] = score_distillation(
                new_layer.objectness_logits, old_layer.objectness_logits, unmatched, normalisers.unmatched
            )
        if switches.mask_kd or switches.position_kd:
            weights = proposal_weights(old_layer.objectness_logits, unmatched, config.distillation.beta)  # (B, N)
            images = normalisers.images_with_unmatched
            if switches.mask_kd:
                parts["mask_kd_bce"], parts["mask_kd_dice"] = mask_distillation(
                    new_layer.mask_logits, old_layer.mask_logits, weights, candidates, uniform, config.masks, images
                )
            if switches.position_kd:
                parts["position_kd"] = position_distillation(
                    new_layer.embeddings, old_layer.embeddings, weights, images
                )
        for name, value in parts.items():
            sums[name] = sums[name] + value if name in sums else value
    return sums


def _recognise(
    model: Segmenter,
    old_model: Segmenter | None,
    stage_one: StageOne,
    old: StageOne | None,
    targets: Targets,
    assignment: Assignment,
    old_objects: Rows,
    config: LossConfig,
    switches: Switches,
    normalisers: Normalisers,
    num_old: int,
    first_label: int,
) -> dict[str, Tensor]:
    """Stage 2's terms: one pass of the class decoder over matched proposals and old objects."""
    matched_query, matched_valid = assignment.query[-1], assignment.valid[-1]  # (B, G)
    num_matched = matched_query.shape[1]
    query = torch.cat((matched_query, old_objects.query), dim=1)  # (B, G + U)
    terms: dict[str, Tensor] = {}

    first_task = 0 if switches.old_logits or first_label < num_old else len(model.tasks) - 1
    skipped = sum(model.tasks[:first_task])
    recognised = _decode(model, stage_one, query, first_task)
    logits = recognised.class_logits
    matched_logits, object_logits = logits[:, :num_matched], logits[:, num_matched:]
    # The place of the first old and of the first new class among the classes that were decoded.
    old_classes, new_classes = slice(0, num_old - skipped), slice(num_old - skipped, None)

    if switches.classification:
        learned = matched_logits[..., first_label - skipped :]
        labels = targets.labels - first_label
        terms["classification"] = (
            focal_loss(learned, labels, matched_valid, config.classification.gamma, normalisers.matched)
            if config.classification.loss == "focal"
            else cross_entropy_loss(learned, labels.clamp(min=0), matched_valid, normalisers.matched)
        )
    if switches.negatives_for_old:
        terms["negatives_for_old"] = negatives_loss(
            matched_logits[..., old_classes],
            matched_valid & (targets.labels >= num_old),
            config.classification.gamma,
            normalisers.matched,
        )
    if switches.negatives_for_new:
        terms["negatives_for_new"] = negatives_loss(
            object_logits[..., new_classes], old_objects.valid, config.classification.gamma, normalisers.old_objects
        )
    if switches.auxiliary and model.auxiliary_head is not None:
        # Label 0 is "an old class": old objects, and matched ones where past classes stay annotated.
        matched_labels = (targets.labels - num_old + 1).clamp(min=0)
        labels = torch.cat((matched_labels, torch.zeros_like(old_objects.query)), dim=1)
        terms["auxiliary"] = auxiliary_loss(
            model.auxiliary_head(recognised.newest_embeddings),
            labels,
            torch.cat((matched_valid, old_objects.valid), dim=1),
            normalisers.recognised,
        )
    if old is not None and old_model is not None and (switches.matched_class_kd or switches.unmatched_class_kd):
        old_logits = _decode_with_old(old_model, old, stage_one, matched_query, old_objects, switches)
        if switches.matched_class_kd:
            terms["matched_class_kd"] = class_distillation(
                matched_logits[..., old_classes], old_logits[:, :num_matched], matched_valid, normalisers.matched
            )
        if switches.unmatched_class_kd:
            terms["unmatched_class_kd"] = class_distillation(
                object_logits[..., old_classes],
                old_logits[:, old_logits.shape[1] - object_logits.shape[1] :],
                old_objects.valid,
                normalisers.old_objects,
            )
    return terms


def _decode(model: Segmenter, stage_one: StageOne, query: Tensor, first_task: int) -> Recognition:
    """Stage 2 of `model` on its own proposals at `query` (B, M)."""
    masks = take_queries(stage_one.final.mask_logits, query) if model.config.class_decoder.masked_attention else None
    return model.recognise(stage_one.pixels, take_queries(stage_one.final.embeddings, query), masks, first_task)


@torch.no_grad()
def _decode_with_old(
    old_model: Segmenter, old: StageOne, stage_one: StageOne, matched: Tensor, old_objects: Rows, switches: Switches
) -> Tensor:
    """Old-class logits of the old class decoder: on the NEW matched embeddings, and on its OWN of old objects."""
    sources = []
    if switches.matched_class_kd:
        sources.append((stage_one.final, matched))
    if switches.unmatched_class_kd:
        sources.append((old.final, old_objects.query))
    embeddings = torch.cat([take_queries(proposals.embeddings, query) for proposals, query in sources], dim=1)
    masks = None
    if old_model.config.class_decoder.masked_attention:
        masks = torch.cat([take_queries(proposals.mask_logits, query) for proposals, query in sources], dim=1)
    return old_model.recognise(old.pixels, embeddings, masks).class_logits
