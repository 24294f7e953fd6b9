"""The named loss terms of a step: which are computed, what they weigh, and how they add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from comastre.config.run import LossConfig, LossWeights


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
    across_tasks: Tensor | None = None

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
        "across_tasks": weights.across_tasks * weights.classification,
    }


def total_loss(terms: Terms, weights: LossWeights) -> Tensor:
    """L = L_seg + L_kd + L_cls-aux."""
    factors = term_weights(weights)
    return torch.stack([factors[name] * value for name, value in terms.items()]).sum()


@dataclass(frozen=True)
class Switches:
    """Which terms are computed at this step: switched on, with a weight, and with what they need."""

    objectness: bool
    mask_bce: bool
    mask_dice: bool
    classification: bool
    score_kd: bool
    mask_kd_bce: bool
    mask_kd_dice: bool
    position_kd: bool
    unmatched_class_kd: bool
    matched_class_kd: bool
    auxiliary: bool
    negatives_for_new: bool
    negatives_for_old: bool
    across_tasks: bool

    @classmethod
    def of(cls, config: LossConfig, later: bool, with_old_model: bool) -> Switches:
        """`later` is true from the second task on."""
        kept, negatives = config.distillation, config.classification
        remembers = later and with_old_model
        wanted = {
            # Objectness has no classes, so the first task may have an old model, too: the one that it started from.
            "score_kd": with_old_model and kept.score,
            "mask_kd_bce": with_old_model and kept.mask,
            "mask_kd_dice": with_old_model and kept.mask,
            "position_kd": with_old_model and kept.position,
            "unmatched_class_kd": remembers and kept.unmatched_classes,
            # The negatives take its place (SPEC section 9).
            "matched_class_kd": remembers and kept.matched_classes and not negatives.negatives_for_old,
            "auxiliary": remembers and kept.auxiliary,
            "negatives_for_new": remembers and negatives.negatives_for_new,
            "negatives_for_old": later and negatives.negatives_for_old,
            "across_tasks": remembers and negatives.across_tasks,
        }
        factors = term_weights(config.weights)
        return cls(**{name: wanted.get(name, True) and factor > 0 for name, factor in factors.items()})

    @property
    def masks(self) -> bool:
        return self.mask_bce or self.mask_dice

    @property
    def mask_kd(self) -> bool:
        return self.mask_kd_bce or self.mask_kd_dice

    @property
    def objectness_kd(self) -> bool:
        return self.score_kd or self.mask_kd or self.position_kd

    @property
    def class_kd(self) -> bool:
        return self.unmatched_class_kd or self.matched_class_kd

    @property
    def old_class_scores(self) -> bool:
        """Terms that look at what the old model calls old objects."""
        return self.unmatched_class_kd or self.across_tasks

    @property
    def old_objects(self) -> bool:
        """Terms that look at unmatched proposals which the old model is sure of."""
        return self.old_class_scores or self.auxiliary or self.negatives_for_new

    @property
    def old_model(self) -> bool:
        return self.objectness_kd or self.old_objects or self.matched_class_kd

    @property
    def old_logits(self) -> bool:
        """Terms that look at the new model's old classes."""
        return self.class_kd or self.negatives_for_old or self.across_tasks

    @property
    def recognition(self) -> bool:
        return self.classification or self.old_logits or self.auxiliary or self.negatives_for_new
