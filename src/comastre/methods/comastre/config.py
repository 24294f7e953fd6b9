"""The section of CoMasTRe and its variants: the two-stage segmenter and its losses; defaults are the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from comastre.config.sections import (
    BACKBONES,
    BackboneConfig,
    MaskDecoderConfig,
    MaskLossConfig,
    MatchingConfig,
    MethodConfig,
    PixelDecoderConfig,
    PositiveInt,
    Share,
    Size,
    Weight,
)
from comastre.section import Section, merge

# --- the segmenter ---------------------------------------------------------------------------------------------------


class ClassDecoderConfig(Section):
    heads: PositiveInt = 8
    """Attention heads."""
    feedforward: PositiveInt = 2048
    """Hidden width of the feed-forward layer."""
    level: Literal[8, 16, 32] = 32
    """Stride of the pixel embedding that is read; 32 is the level that Mask2Former's first block reads."""
    masked_attention: bool = False
    """Let a proposal look only inside its own mask (ours; the paper's attention is unrestricted)."""
    task_queries: bool = True
    """One query per task; off: one query for all tasks (paper Table 7)."""


class InferenceConfig(Section):
    alpha: Share = 0.8
    """Only proposals with objectness above this are recognised."""
    class_threshold: Share = 0.0
    """A proposal whose best class has a lower probability is none of the classes (ours)."""
    merge: Literal["mask2former", "strict", "transformers"] = "mask2former"
    """Which pixels a segment has kept: all that it wins (Mask2Former), those inside its own mask alone (ours), or as
    transformers counts them."""
    overlap: Share = 0.8
    """A segment must keep this share of its own mask after the merge."""
    mask_threshold: Share = 0.5
    """Mask probability from which a pixel belongs to a proposal."""
    every_pixel: bool = False
    """Give pixels that no segment took to the best class, as dense data without background asks for (ours)."""


SIZES: Mapping[str, Mapping[str, Any]] = {
    # For 64 to 128 px on a CPU: about half a million weights.
    "tiny": {
        "pixel_decoder": {"dim": 64, "layers": 1, "heads": 4, "points": 4, "feedforward": 128},
        "mask_decoder": {"num_queries": 16, "layers": 3, "heads": 4, "feedforward": 128},
        "class_decoder": {"heads": 4, "feedforward": 128, "level": 8, "masked_attention": True},
    },
    # For real photographs on a CPU.
    "small": {
        "pixel_decoder": {"dim": 128, "layers": 2, "heads": 8, "points": 4, "feedforward": 256},
        "mask_decoder": {"num_queries": 20, "layers": 6, "heads": 8, "feedforward": 512},
        "class_decoder": {"heads": 8, "feedforward": 512, "level": 16, "masked_attention": True},
    },
}
"""Fields of the smaller sizes; r50 and r101 have the defaults."""


class Decoders(Section):
    """The parts of the segmenter behind its backbone."""

    pixel_decoder: PixelDecoderConfig = PixelDecoderConfig()
    mask_decoder: MaskDecoderConfig = MaskDecoderConfig()
    class_decoder: ClassDecoderConfig = ClassDecoderConfig()
    inference: InferenceConfig = InferenceConfig()

    @model_validator(mode="after")
    def _check_divisible(self) -> Self:
        dim = self.pixel_decoder.dim
        if dim % 32:
            raise ValueError(f"pixel_decoder.dim is {dim} but GroupNorm needs a multiple of 32")
        for name in ("pixel_decoder", "mask_decoder", "class_decoder"):
            heads = getattr(self, name).heads
            if dim % heads:
                raise ValueError(f"{name}.heads is {heads} but must divide pixel_decoder.dim = {dim}")
        return self


class ModelConfig(Decoders):
    """Everything that decides what a segmenter is."""

    size: Size = "r101"
    """Named size that fills every field not given: r101 and r50 are the paper's."""
    backbone: BackboneConfig = BackboneConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_size(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        size = str(given.get("size", "r101"))
        defaults = {"backbone": BACKBONES.get(size, {}), **SIZES.get(size, {})}
        given = {name: value.model_dump() if isinstance(value, Section) else value for name, value in given.items()}
        return merge(defaults, given)


# --- losses ----------------------------------------------------------------------------------------------------------


class ClassificationConfig(Section):
    loss: Literal["focal", "cross_entropy"] = "focal"
    """Recognition loss (paper Table 7)."""
    cross_entropy: Literal["binary", "new_classes", "all_classes"] = "binary"
    """What cross_entropy means: class by class (gamma 0), or a softmax over the step's classes, or over all so far."""
    gamma: Weight = 2.0
    """Focusing strength of the focal loss."""
    negatives_for_new: bool = False
    """Old objects are negatives for the new classes (ours)."""
    negatives_for_old: bool = False
    """New objects are negatives for the old classes, in place of matched class distillation (ours)."""
    across_tasks: bool = False
    """Old and new classes compete in one softmax, as they do in a prediction (ours)."""
    unlabelled_negatives: bool = False
    """Sure proposals on nothing labelled are none of the step's classes; Eq. 2 shows labelled objects only (ours)."""

    @property
    def class_by_class(self) -> bool:
        """Whether classes do not compete: each has a sigmoid of its own."""
        return self.loss == "focal" or self.cross_entropy == "binary"

    @property
    def focus(self) -> float:
        """Gamma of Eq. 2; without focusing it is binary cross-entropy."""
        return self.gamma if self.loss == "focal" else 0.0

    @property
    def over_all_classes(self) -> bool:
        """Whether a softmax runs over the classes of old tasks, too."""
        return not self.class_by_class and self.cross_entropy == "all_classes"


class DistillationConfig(Section):
    score: bool = True
    """Distil objectness scores (Eq. 3)."""
    mask: bool = True
    """Distil mask proposals (Eq. 4)."""
    mask_loss: Literal["printed", "divergence"] = "printed"
    """Eq. 4 as printed, or a form that is 0 where nothing was forgotten (ours)."""
    position: bool = True
    """Distil positional embeddings (Eq. 5)."""
    unmatched_classes: bool = True
    """Distil class predictions of confident unmatched proposals."""
    matched_classes: bool = True
    """Distil class predictions of matched proposals."""
    auxiliary: bool = True
    """Auxiliary old-versus-new classifier (DER, DyTox)."""
    class_scores: Literal["softmax", "sigmoid"] = "softmax"
    """Distil the softmax over old classes (paper), or each class's own probability (ours): it sees all sink at once."""
    class_direction: Literal["new_old", "old_new"] = "new_old"
    """Of the softmax: KL(new || old), as printed, or KL(old || new), as DyTox and most others have it."""
    beta: Weight = 2.0
    """Strength of the objectness re-weighting of Eq. 4 and 5."""
    alpha: Share = 0.8
    """Old objectness from which an unmatched proposal counts as an old object."""
    spare_labelled: bool = False
    """Distil nothing from old proposals that lie on a labelled object: they take it for something else (ours)."""
    all_layers: bool = False
    """Distil objectness at every decoder layer, not only the last."""
    from_init: bool = True
    """With `init`, distil the objectness of that model in the first step, too (paper Table 4)."""

    @classmethod
    def none(cls) -> DistillationConfig:
        """Plain fine-tuning: nothing of the old model is kept."""
        return cls(
            score=False,
            mask=False,
            position=False,
            unmatched_classes=False,
            matched_classes=False,
            auxiliary=False,
            from_init=False,
        )


class LossWeights(Section):
    """Weights of the named terms; a distillation weight multiplies the weight of the loss that it mirrors."""

    objectness: Weight = 2.0
    """Objectness loss (Eq. 1); as for every weight, 0 switches the term off and skips its work."""
    no_object: Weight = 0.1
    """Weight of unmatched queries inside the objectness loss."""
    mask_bce: Weight = 5.0
    """Cross-entropy of matched masks (Eq. 1)."""
    mask_dice: Weight = 5.0
    """Dice loss of matched masks (Eq. 1)."""
    classification: Weight = 2.0
    """Recognition of matched proposals (Eq. 2)."""
    score_kd: Weight = 1.0
    """Objectness score distillation (Eq. 3), times `objectness`."""
    mask_kd: Weight = 1.0
    """Mask distillation (Eq. 4), times `mask_bce` and `mask_dice`."""
    position_kd: Weight = 1.0
    """Positional embedding distillation (Eq. 5)."""
    unmatched_class_kd: Weight = 1.0
    """Class distillation of old objects, times `classification`."""
    matched_class_kd: Weight = 1.0
    """Class distillation of new objects, times `classification`."""
    auxiliary: Weight = 0.1
    """Auxiliary old-versus-new loss: 0.1 is DyTox's; the paper's sum shows no weight, which would be 1."""
    negatives_for_new: Weight = 1.0
    """Old objects as negatives for new classes (ours), times `classification`."""
    negatives_for_old: Weight = 1.0
    """New objects as negatives for old classes (ours), times `classification`."""
    across_tasks: Weight = 1.0
    """Old and new classes against each other (ours), times `classification`."""
    unlabelled_negatives: Weight = 1.0
    """Proposals on nothing labelled as negatives (ours), times `classification`."""


class LossConfig(Section):
    matching: MatchingConfig = MatchingConfig()
    masks: MaskLossConfig = MaskLossConfig()
    classification: ClassificationConfig = ClassificationConfig()
    distillation: DistillationConfig = DistillationConfig()
    weights: LossWeights = LossWeights()


# --- the section -----------------------------------------------------------------------------------------------------

_REMEMBERS_OBJECTS = (
    "distillation.score",
    "distillation.mask",
    "distillation.position",
    "distillation.beta",
    "distillation.spare_labelled",
    "distillation.all_layers",
    "distillation.from_init",
    "weights.score_kd",
    "weights.mask_kd",
    "weights.position_kd",
)
"""Fields, or beginnings of them, of objectness distillation."""
_REMEMBERS_CLASSES = (
    "distillation.",
    "classification.negatives_",
    "classification.across_tasks",
    "weights.unmatched_class_kd",
    "weights.matched_class_kd",
    "weights.auxiliary",
    "weights.negatives_",
    "weights.across_tasks",
)
"""Fields, or beginnings of them, of what tells old classes from new ones: of all distillation but the above, too."""

OTHERS = 5
"""Objects that are something else, for each that is of a new class, that teach what the class is not."""


class ComastreConfig(Decoders, LossConfig, MethodConfig):
    """The section `comastre` of a run."""

    model_sections: ClassVar[tuple[str, ...]] = tuple(Decoders.model_fields)
    unwritten: ClassVar[Mapping[str, Any]] = {"inference": {"merge": "strict"}}

    @classmethod
    def for_size(cls, size: str) -> Mapping[str, Any]:
        return SIZES.get(size, {})

    def model(self, size: str, backbone: BackboneConfig) -> ModelConfig:
        """The segmenter that the section describes, on this backbone."""
        given = {name: getattr(self, name) for name in self.model_sections}
        return ModelConfig.model_validate({"size": size, "backbone": backbone, **given})

    @property
    def loss(self) -> LossConfig:
        """The sections that the losses need, as one value."""
        return LossConfig(**{name: getattr(self, name) for name in LossConfig.model_fields})

    def shapes_first_step(self, field: str, from_init: bool) -> bool:
        """All but what remembers; where the first step starts from another model, it may remember that one."""
        if field.startswith(_REMEMBERS_OBJECTS):
            return from_init
        if field.startswith(_REMEMBERS_CLASSES):
            return False
        if field == "classification.cross_entropy":
            return self.classification.loss == "cross_entropy"
        if field == "weights.unlabelled_negatives":
            return self.classification.unlabelled_negatives
        return super().shapes_first_step(field, from_init)

    def for_lesson(self, new_classes: int) -> Mapping[str, Any]:
        """Old objects as negatives, where a new class meets too few others.

        Eq. 2 shows a new class only objects of the other new ones, and a class that comes alone none at all; what is
        missing, old objects are (ours, off in the paper). Where old and new classes compete in one softmax, that tells
        them apart already.
        """
        if self.classification.across_tasks:
            return {}
        # The loss is a sum over the new classes and a mean over objects: one of n new classes is every n-th object,
        # meets n - 1 others for it, and n times this weight of old ones.
        weight = max(0.0, (OTHERS + 1 - new_classes) / new_classes)
        return {"classification": {"negatives_for_new": weight > 0}, "weights": {"negatives_for_new": round(weight, 2)}}


PAPER: Mapping[str, Any] = {
    "class_decoder": {"masked_attention": False},
    "inference": {"alpha": 0.8, "class_threshold": 0.0},
    "matching": {"objectness_cost": 0.0},
    "classification": {
        "negatives_for_new": False,
        "negatives_for_old": False,
        "across_tasks": False,
        "unlabelled_negatives": False,
    },
    "distillation": {"mask_loss": "printed", "class_scores": "softmax"},
    "weights": {
        "classification": 2.0,
        "score_kd": 1.0,
        "mask_kd": 1.0,
        "position_kd": 1.0,
        "unmatched_class_kd": 1.0,
        "matched_class_kd": 1.0,
    },
}
"""The paper's own switches, to be laid over a preset that has ours."""
