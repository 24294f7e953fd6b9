"""The loss terms of a step in one table: what each weighs, and when it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from comastre.methods.comastre.config import LossConfig, LossWeights


@dataclass(frozen=True)
class Situation:
    """What decides whether a term has a meaning."""

    config: LossConfig
    later: bool
    """From the second task on."""
    old_model: bool
    """There is a model to learn from; at the first task it is the one that the run started from."""

    @property
    def remembers(self) -> bool:
        return self.later and self.old_model


@dataclass(frozen=True)
class Term:
    """One named, unweighted term of the loss."""

    name: str
    weight: Callable[[LossWeights], float]
    """A distillation term carries the weight of the loss that it mirrors."""
    wanted: Callable[[Situation], bool] = lambda now: True


TERMS = (
    Term("objectness", lambda weights: weights.objectness),
    Term("mask_bce", lambda weights: weights.mask_bce),
    Term("mask_dice", lambda weights: weights.mask_dice),
    Term("classification", lambda weights: weights.classification),
    # Objectness has no classes, so the first task may have an old model, too: the one that it started from.
    Term(
        "score_kd",
        lambda weights: weights.score_kd * weights.objectness,
        lambda now: now.old_model and now.config.distillation.score,
    ),
    Term(
        "mask_kd_bce",
        lambda weights: weights.mask_kd * weights.mask_bce,
        lambda now: now.old_model and now.config.distillation.mask,
    ),
    Term(
        "mask_kd_dice",
        lambda weights: weights.mask_kd * weights.mask_dice,
        lambda now: now.old_model and now.config.distillation.mask,
    ),
    Term(
        "position_kd",
        lambda weights: weights.position_kd,
        lambda now: now.old_model and now.config.distillation.position,
    ),
    Term(
        "unmatched_class_kd",
        lambda weights: weights.unmatched_class_kd * weights.classification,
        lambda now: now.remembers and now.config.distillation.unmatched_classes,
    ),
    Term(
        "matched_class_kd",
        lambda weights: weights.matched_class_kd * weights.classification,
        # The negatives for old classes take its place.
        lambda now: (
            now.remembers
            and now.config.distillation.matched_classes
            and not now.config.classification.negatives_for_old
        ),
    ),
    Term(
        "auxiliary",
        lambda weights: weights.auxiliary,
        lambda now: now.remembers and now.config.distillation.auxiliary,
    ),
    Term(
        "negatives_for_new",
        lambda weights: weights.negatives_for_new * weights.classification,
        lambda now: now.remembers and now.config.classification.negatives_for_new,
    ),
    Term(
        "negatives_for_old",
        lambda weights: weights.negatives_for_old * weights.classification,
        lambda now: now.later and now.config.classification.negatives_for_old,
    ),
    Term(
        "across_tasks",
        lambda weights: weights.across_tasks * weights.classification,
        lambda now: now.remembers and now.config.classification.across_tasks,
    ),
    Term(
        "unlabelled_negatives",
        lambda weights: weights.unlabelled_negatives * weights.classification,
        lambda now: now.config.classification.unlabelled_negatives,
    ),
)


def term_weights(weights: LossWeights) -> dict[str, float]:
    """The factor of every term in the total."""
    return {term.name: term.weight(weights) for term in TERMS}


def total_loss(terms: Mapping[str, Tensor], weights: LossWeights) -> Tensor:
    """L = L_seg + L_kd + L_cls-aux."""
    factors = term_weights(weights)
    return torch.stack([factors[name] * value for name, value in terms.items()]).sum()


@dataclass(frozen=True)
class Switches:
    """Which terms are computed at this step: switched on, with a weight, and with what they need."""

    on: frozenset[str]

    @classmethod
    def of(cls, config: LossConfig, later: bool, with_old_model: bool) -> Switches:
        """`later` is true from the second task on."""
        now = Situation(config, later, with_old_model)
        return cls(frozenset(term.name for term in TERMS if term.wanted(now) and term.weight(config.weights) > 0))

    def computes(self, *names: str) -> bool:
        """Whether any of the terms is on."""
        return not self.on.isdisjoint(names)

    def chosen(self, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of the terms those that are on, in the order of the table."""
        return {term.name: terms[term.name] for term in TERMS if term.name in self.on and term.name in terms}

    @property
    def masks(self) -> bool:
        return self.computes("mask_bce", "mask_dice")

    @property
    def mask_kd(self) -> bool:
        return self.computes("mask_kd_bce", "mask_kd_dice")

    @property
    def objectness_kd(self) -> bool:
        return self.mask_kd or self.computes("score_kd", "position_kd")

    @property
    def class_kd(self) -> bool:
        return self.computes("unmatched_class_kd", "matched_class_kd")

    @property
    def old_class_scores(self) -> bool:
        """Terms that look at what the old model calls old objects."""
        return self.computes("unmatched_class_kd", "across_tasks")

    @property
    def old_objects(self) -> bool:
        """Terms that look at unmatched proposals which the old model is sure of."""
        return self.old_class_scores or self.computes("auxiliary", "negatives_for_new")

    @property
    def old_model(self) -> bool:
        return self.objectness_kd or self.old_objects or self.computes("matched_class_kd")

    @property
    def old_logits(self) -> bool:
        """Terms that look at the new model's old classes."""
        return self.class_kd or self.computes("negatives_for_old", "across_tasks")

    @property
    def recognition(self) -> bool:
        return self.old_logits or self.computes(
            "classification", "auxiliary", "negatives_for_new", "unlabelled_negatives"
        )
