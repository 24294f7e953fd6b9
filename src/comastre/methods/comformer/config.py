"""The section of CoMFormer and of its adaptations of MiB and PLOP; defaults are those of the released commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comastre.config.sections import Share, Weight
from comastre.methods.mask2former.config import (
    Mask2FormerConfig,
    QueryClassificationConfig,
    QueryDecoderConfig,
    QueryInferenceConfig,
    QueryLossWeights,
)
from comastre.section import Section


class PseudoLabelConfig(Section):
    """What the old model labels in the images of a step (`comformer`, `plop-mask`)."""

    score: Share = 0.0
    """Only its queries whose class has a probability above this."""
    mask_threshold: Share = 0.5
    """Mask probability from which on a pixel is labelled."""
    overlap: Share = 0.5
    """A mask must keep more than this share of itself beside the labels and the other masks."""


class QueryDistillationConfig(Section):
    gamma: Weight = 2.0
    """A query that the old model takes for an object with probability p weighs p to this power (`comformer`)."""


class ComformerWeights(QueryLossWeights):
    distillation: Weight = 10.0
    """Adaptive class distillation of `comformer`; its own scripts of ADE20K 100-50 have 0.5 and 5."""
    unbiased_distillation: Weight = 200.0
    """Class distillation of `mib-mask`."""
    pod: Weight = 0.001
    """Feature distillation of `plop-mask`, times sqrt(new classes / all classes)."""


_REMEMBERS = (
    "pseudo_labels.",
    "distillation.",
    "weights.distillation",
    "weights.unbiased_distillation",
    "weights.pod",
)


LESSON_DISTILLATION = 1.0
"""Weight of class distillation in a lesson, at most (docs/experiments.md, Converting a Mask2Former)."""


class ComformerConfig(Mask2FormerConfig):
    """The section `comformer` of a run."""

    mask_decoder: QueryDecoderConfig = QueryDecoderConfig(softmax_masks=True)
    inference: QueryInferenceConfig = QueryInferenceConfig(score=0.0, overlap=0.0)
    classification: QueryClassificationConfig = QueryClassificationConfig(loss="focal")
    pseudo_labels: PseudoLabelConfig = PseudoLabelConfig()
    distillation: QueryDistillationConfig = QueryDistillationConfig()
    weights: ComformerWeights = ComformerWeights()

    def for_lesson(self, new_classes: int) -> Mapping[str, Any]:
        """Less distillation: what the old model took a new object for, it would teach on those very queries."""
        return {"weights": {"distillation": min(self.weights.distillation, LESSON_DISTILLATION)}}

    def shapes_first_step(self, field: str, from_init: bool) -> bool:
        """All but what remembers an old model, which a first step has not."""
        return not field.startswith(_REMEMBERS) and super().shapes_first_step(field, from_init)
