"""One training step's loss terms at any step t: the one place that puts matching, losses and distillation together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from comastre.losses.classification import (
    across_tasks_loss,
    auxiliary_loss,
    cross_entropy_loss,
    focal_loss,
    negatives_loss,
)
from comastre.losses.distillation import (
    class_distillation,
    class_score_distillation,
    mask_distillation,
    position_distillation,
    proposal_weights,
    score_distillation,
)
from comastre.losses.masks import matched_mask_losses
from comastre.losses.objectness import objectness_loss
from comastre.methods.comastre.class_decoder import Recognition
from comastre.methods.comastre.config import DistillationConfig
from comastre.methods.comastre.step import Learner, Step, StepInputs, prepare
from comastre.nets.outputs import Proposals, take_queries
from comastre.nets.precision import upcast


def compute_terms(inputs: StepInputs, auxiliary_head: nn.Module | None = None) -> dict[str, Tensor]:
    """The named, unweighted terms of one batch, those that are on (docs/specification.md, Losses).

    The old model, where a term needs it, runs once without gradient. Labels are learned over the newest task's classes
    and over those past classes that the data labels too.
    """
    step = prepare(inputs)
    terms = _supervise_proposals(step)
    if step.old is not None and step.switches.objectness_kd:
        terms |= _distil_objectness(step, step.old)
    if step.switches.recognition:
        terms |= _recognise(step, auxiliary_head)
    # One sampling of points gives cross-entropy and dice; where only one of them is on, the other is dropped here.
    return step.switches.chosen(terms)


def _supervise_proposals(step: Step) -> dict[str, Tensor]:
    """L_obj (Eq. 1), at each of the L + 1 predictions."""
    layers, config, terms = step.new.stage_one.layers, step.config, {}
    if step.switches.computes("objectness"):
        logits = torch.stack([layer.objectness_logits for layer in layers])  # (L + 1, B, N)
        matched, normaliser = step.assignment.matched, step.normalisers.objectness
        terms["objectness"] = objectness_loss(logits, matched, config.weights.no_object, normaliser)
    if step.switches.masks:
        terms["mask_bce"], terms["mask_dice"] = matched_mask_losses(
            layers,
            step.targets,
            step.assignment,
            step.candidates,
            step.uniform,
            config.masks,
            step.normalisers.masks,
        )
    return terms


def _distil_objectness(step: Step, old: Learner) -> dict[str, Tensor]:
    """L_obj-kd (Eq. 3 to 5) on the unmatched queries of the last prediction, or of all of them, summed."""
    old_layers = old.stage_one.layers
    new_layers = step.new.stage_one.layers[-len(old_layers) :]
    unmatched = ~step.assignment.matched[-len(old_layers) :]  # (K, B, N)
    if step.spared is not None:
        unmatched = unmatched & ~step.spared
    sums: dict[str, Tensor] = {}
    for new_layer, old_layer, rows in zip(new_layers, old_layers, unmatched, strict=True):
        for name, value in _distil_layer(step, new_layer, old_layer, rows).items():
            sums[name] = sums[name] + value if name in sums else value
    return sums


def _distil_layer(step: Step, new: Proposals, old: Proposals, unmatched: Tensor) -> dict[str, Tensor]:
    """Eq. 3 to 5 at one prediction for its unmatched queries (B, N)."""
    switches, config, terms = step.switches, step.config, {}
    images = step.normalisers.images_with_unmatched
    if switches.computes("score_kd"):
        terms["score_kd"] = score_distillation(
            new.objectness_logits, old.objectness_logits, unmatched, step.normalisers.unmatched
        )
    if switches.mask_kd or switches.computes("position_kd"):
        weights = proposal_weights(old.objectness_logits, unmatched, config.distillation.beta)  # (B, N)
    if switches.mask_kd:
        terms["mask_kd_bce"], terms["mask_kd_dice"] = mask_distillation(
            new.mask_logits,
            old.mask_logits,
            weights,
            step.candidates,
            step.uniform,
            config.masks,
            images,
            divergence=config.distillation.mask_loss == "divergence",
        )
    if switches.computes("position_kd"):
        terms["position_kd"] = position_distillation(new.embeddings, old.embeddings, weights, images)
    return terms


def _recognise(step: Step, auxiliary_head: nn.Module | None) -> dict[str, Tensor]:
    """L_cls, L_cls-kd and L_cls-aux: one pass of the class decoder over matched proposals, old objects and others."""
    switches, model, config = step.switches, step.new.model, step.config.classification
    counts, labels, num_old = step.normalisers, step.targets.labels, step.num_old
    matched_query, matched = step.assignment.query[-1], step.assignment.valid[-1]  # (B, G)
    objects = step.old_objects
    asked = [matched_query, objects.query]
    if step.unlabelled is not None:
        asked.append(step.unlabelled.query)
    numbers = [each.shape[1] for each in asked]

    # Old tasks are decoded only for terms that look at their classes.
    whole = config.over_all_classes and switches.computes("classification")
    first_task = 0 if switches.old_logits or step.labelled_old or whole else len(model.tasks) - 1
    skipped = sum(model.tasks[:first_task])
    recognised = _decode(step.new, torch.cat(asked, dim=1), first_task)
    matched_logits, object_logits, *others = recognised.class_logits.split(numbers, dim=1)
    old_classes, new_classes = slice(0, num_old - skipped), slice(num_old - skipped, None)

    terms: dict[str, Tensor] = {}
    if switches.computes("classification"):
        learned, own_labels = (matched_logits, labels) if whole else _labelled_classes(step, matched_logits, skipped)
        terms["classification"] = (
            focal_loss(learned, own_labels, matched, config.focus, counts.matched)
            if config.class_by_class
            else cross_entropy_loss(learned, own_labels, matched, counts.matched)
        )
    if switches.computes("negatives_for_old"):
        # Where past classes stay annotated, a matched object may be of an old class.
        terms["negatives_for_old"] = negatives_loss(
            matched_logits[..., old_classes], matched & (labels >= num_old), config.gamma, counts.matched
        )
    if switches.computes("negatives_for_new"):
        terms["negatives_for_new"] = negatives_loss(
            object_logits[..., new_classes], objects.valid, config.gamma, counts.old_objects
        )
    if step.unlabelled is not None:
        # Divided by the labelled objects, as Eq. 2 is: an object counts the same whether it is labelled or not. A batch
        # without any has negatives, too.
        terms["unlabelled_negatives"] = negatives_loss(
            others[0][..., new_classes], step.unlabelled.sureness, config.gamma, counts.masks
        )
    if switches.computes("auxiliary") and auxiliary_head is not None:
        # Label 0 is "an old class": old objects, and matched ones where past classes stay annotated.
        auxiliary_labels = torch.cat(((labels - num_old + 1).clamp(min=0), torch.zeros_like(objects.query)), dim=1)
        terms["auxiliary"] = auxiliary_loss(
            auxiliary_head(recognised.newest_embeddings[:, : sum(numbers[:2])]),
            auxiliary_labels,
            torch.cat((matched, objects.valid), dim=1),
            counts.recognised,
        )
    if step.old is not None and (switches.class_kd or switches.computes("across_tasks")):
        of_matched, of_objects = _decode_with_old(step, step.old)
        distil = _class_distillation(step.config.distillation)
        # An old model that knows what it has no name for says so: by as much, a sure proposal is no old object.
        named = objects.valid
        if step.unlabelled is not None and switches.old_class_scores:
            named = objects.valid * upcast(of_objects).sigmoid().amax(dim=-1)
        if switches.computes("across_tasks"):
            terms["across_tasks"] = across_tasks_loss(
                matched_logits,
                labels,
                matched,
                object_logits,
                of_objects,
                named,
                (counts.matched, counts.old_objects),
            )
        if switches.computes("matched_class_kd"):
            terms["matched_class_kd"] = distil(matched_logits[..., old_classes], of_matched, matched, counts.matched)
        if switches.computes("unmatched_class_kd"):
            terms["unmatched_class_kd"] = distil(object_logits[..., old_classes], of_objects, named, counts.old_objects)
    return terms


def _class_distillation(config: DistillationConfig) -> Callable[..., Tensor]:
    if config.class_scores == "sigmoid":
        return class_score_distillation
    return partial(class_distillation, from_old=config.class_direction == "old_new")


def _labelled_classes(step: Step, logits: Tensor, skipped: int) -> tuple[Tensor, Tensor]:
    """Logits (B, G, C) of the classes that labels are learned over, and the labels (B, G) counted in these."""
    labels, num_old = step.targets.labels, step.num_old
    if not step.labelled_old:
        return logits[..., num_old - skipped :], labels - num_old
    # All tasks were decoded. Old classes without labels are left out: the labels do not say where they are absent.
    columns = (*step.labelled_old, *range(num_old, logits.shape[-1]))
    if columns == tuple(range(logits.shape[-1])):
        return logits, labels
    places = {column: place for place, column in enumerate(columns)}
    place_of = torch.tensor([places.get(k, 0) for k in range(logits.shape[-1])], device=labels.device)
    return logits[..., torch.tensor(columns, device=labels.device)], place_of[labels]


def _decode(learner: Learner, query: Tensor, first_task: int) -> Recognition:
    """Stage 2 of a model on its own proposals at `query` (B, M)."""
    model, proposals = learner.model, learner.stage_one.final
    masks = proposals.mask_logits_of(query) if model.config.class_decoder.masked_attention else None
    return model.recognise(learner.stage_one.pixels, take_queries(proposals.embeddings, query), masks, first_task)


@torch.no_grad()
def _decode_with_old(step: Step, old: Learner) -> tuple[Tensor, Tensor]:
    """Old-class logits (B, G, C_old) and (B, U, C_old) of the old class decoder, in one pass.

    It sees the NEW model's embeddings of matched proposals, and its OWN of old objects; a part that no term asks for
    has no rows.
    """
    matched = step.assignment.query[-1][:, : None if step.switches.computes("matched_class_kd") else 0]  # (B, G)
    objects = step.old_objects.query[:, : None if step.switches.old_class_scores else 0]  # (B, U)
    if matched.shape[1] + objects.shape[1] == 0:
        no_rows = step.old_objects.query.new_zeros(len(matched), 0, old.model.num_classes, dtype=torch.float32)
        return no_rows, no_rows

    new, own = step.new.stage_one.final, old.stage_one.final
    embeddings = torch.cat((take_queries(new.embeddings, matched), take_queries(own.embeddings, objects)), dim=1)
    masks = None
    if old.model.config.class_decoder.masked_attention:
        masks = torch.cat((new.mask_logits_of(matched), own.mask_logits_of(objects)), dim=1)
    logits = old.model.recognise(old.stage_one.pixels, embeddings, masks).class_logits
    of_matched, of_objects = logits.split([matched.shape[1], objects.shape[1]], dim=1)
    return of_matched, of_objects
