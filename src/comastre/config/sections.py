"""Sections that several methods share: the backbone, the query nets, their losses, and the optimiser.

What a field's default is, a method may say otherwise in its own section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from comastre.config.older import batch_norm_today
from comastre.section import Section, merge

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0)]
PositiveInt = Annotated[int, Field(ge=1, le=10**9)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Mean = Annotated[float, Field(ge=-1e3, le=1e3)]
Deviation = Annotated[float, Field(ge=1e-4, le=1e3)]
Size = Literal["tiny", "small", "r50", "r101"]
_ARCHITECTURE = re.compile(r"[A-Za-z0-9_]{1,100}(\.[A-Za-z0-9_]{1,100})?")

BACKBONES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"name": "test_resnet", "weights": "none"},  # 64 to 128 px on a CPU, no download
    "small": {"name": "tf_efficientnet_lite0"},  # photographs on a CPU
    # detectron2's fixed BatchNorm, as in CoMFormer's released configurations of it.
    "r50": {"name": "resnet50.tv_in1k", "freeze_batch_norm": "always", "freeze_batch_norm_weights": True},
    "r101": {"name": "resnet101.tv_in1k"},
}
"""Backbone of each size, where none is named."""


class BackboneConfig(Section):
    name: str = "resnet101.tv_in1k"
    """Any timm model that gives features at strides 4, 8, 16 and 32."""
    weights: str = "hub"
    """'hub' (pretrained, downloaded), 'none' (random), or the path of a .safetensors file or of a state dict (.pth)."""
    freeze_batch_norm: Literal["none", "later", "always"] = "none"
    """When BatchNorm statistics stand still: in no step, after the first, or from the first on."""
    freeze_batch_norm_weights: bool = False
    """Where the statistics stand still, so do the weights and biases of BatchNorm, as in detectron2."""
    frozen_stride: Literal[0, 4, 8, 16, 32] = 0
    """Never train the layers up to the features of this stride (0: all learn); saves most of their backward pass."""
    mean: tuple[Mean, Mean, Mean] | None = None
    """Image mean in 0..1; by default what the backbone was trained with."""
    std: tuple[Deviation, Deviation, Deviation] | None = None
    """Image standard deviation in 0..1; by default what the backbone was trained with."""

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        """Other forms of timm (hf-hub:..., local-dir:...) open addresses and files: a model must not name any."""
        if not _ARCHITECTURE.fullmatch(name):
            raise ValueError(
                f"{name[:80]!r} is no plain name of timm, such as resnet50.tv_in1k: give that, and a file of other "
                "weights as backbone.weights"
            )
        return name

    @model_validator(mode="before")
    @classmethod
    def _read_older_names(cls, given: Any) -> Any:
        return batch_norm_today(given) if isinstance(given, Mapping) else given

    def holds_batch_norm(self, step: int) -> bool:
        """Whether BatchNorm stands still in a step (0-based)."""
        return self.freeze_batch_norm == "always" or (self.freeze_batch_norm == "later" and step > 0)

    def without_weights(self) -> BackboneConfig:
        """The same structure, whose numbers come from elsewhere: nothing is downloaded or opened."""
        return self.model_copy(update={"weights": "none"})


# --- query nets ------------------------------------------------------------------------------------------------------


class PixelDecoderConfig(Section):
    dim: PositiveInt = 256
    """Channels d of all pixel and query embeddings."""
    layers: Annotated[int, Field(ge=0)] = 6
    """Deformable encoder layers over strides 32, 16 and 8."""
    top_down: bool = False
    """First add each level, upsampled, to the next finer one, as a feature pyramid does (ours: cheaper than layers)."""
    heads: PositiveInt = 8
    """Attention heads."""
    points: PositiveInt = 4
    """Sampling points per head and level."""
    feedforward: PositiveInt = 1024
    """Hidden width of the feed-forward layers."""
    float32: bool = True
    """Stay in float32 under mixed precision, as Mask2Former's does."""


class MaskDecoderConfig(Section):
    num_queries: PositiveInt = 20
    """Positional queries N: 20 on VOC, 100 on ADE20K."""
    layers: PositiveInt = 9
    """Decoder layers L."""
    heads: PositiveInt = 8
    """Attention heads."""
    feedforward: PositiveInt = 2048
    """Hidden width of the feed-forward layers."""


class MatchingConfig(Section):
    bce: Weight = 5.0
    """Weight of the mask cross-entropy in the matching cost."""
    dice: Weight = 5.0
    """Weight of the dice distance in the matching cost."""
    objectness_cost: Weight = 0.0
    """Subtract this times the objectness from the cost (ours; the paper matches masks only)."""
    points: PositiveInt = 12544
    """Random points per image on which costs are computed."""


class MaskLossConfig(Section):
    points: PositiveInt = 12544
    """Points per mask on which the mask losses are computed."""
    oversample: Annotated[float, Field(ge=1.0)] = 3.0
    """Candidates drawn per point, from which the most uncertain are kept."""
    importance: Share = 0.75
    """Share of points chosen by uncertainty; the rest is uniform."""


# --- a method's own section ------------------------------------------------------------------------------------------


class OptimiserConfig(Section):
    """Rates, decay and schedule of the optimiser that a method builds; the defaults are those of AdamW in the paper."""

    learning_rate: PositiveFloat = 1e-4
    """Learning rate of the first step."""
    later_learning_rate: PositiveFloat = 5e-5
    """Learning rate of later steps."""
    backbone_factor: Weight = 0.1
    """Learning-rate factor of the backbone."""
    later_backbone_factor: Weight | None = None
    """Learning-rate factor of the backbone in later steps; by default as in the first."""
    weight_decay: Weight = 0.05
    """Weight decay."""
    clip: Weight = 0.01
    """Gradient norm limit of the whole model; 0 switches clipping off."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Iterations of linear warm-up at the start of each step."""
    power: Weight = 0.9
    """Power of the polynomial schedule."""

    def rate(self, step: int) -> float:
        """Learning rate at the start of a step."""
        return self.learning_rate if step == 0 else self.later_learning_rate

    def factor_of_backbone(self, step: int) -> float:
        """What the backbone's rate is of that."""
        later = self.later_backbone_factor
        return self.backbone_factor if step == 0 or later is None else later


class MethodConfig(Section):
    """What a method's own section of a run holds; every method has a subclass with its paper's defaults."""

    model_sections: ClassVar[tuple[str, ...]] = ()
    """Fields of the section that decide what the model is; the others say how it learns."""
    added_sections: ClassVar[tuple[str, ...]] = ()
    """Of these, what a model of another method lacks that this one takes over: a lesson of it may choose."""
    unwritten: ClassVar[Mapping[str, Any]] = {}
    """What bundles of before a field was there mean by its absence, where that is not the default."""

    optimiser: OptimiserConfig = OptimiserConfig()

    @model_validator(mode="before")
    @classmethod
    def _keep_own_defaults(cls, given: Any) -> Any:
        """A section given in part keeps the rest of this method's default, which may differ from the section's own."""
        if not isinstance(given, Mapping):
            return given
        kept = dict(given)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, Section) and isinstance(kept.get(name), Mapping):
                kept[name] = merge(field.default.model_dump(), kept[name])
        return kept

    @classmethod
    def for_size(cls, size: str) -> Mapping[str, Any]:
        """Fields that a named size fills in where they are not given."""
        return {}

    @classmethod
    def adopting(cls, settings: Mapping[str, Any], num_tasks: int) -> Mapping[str, Any]:
        """The section for a model of another method, with that one's `settings`, that has learned so many tasks."""
        return settings

    def shapes_first_step(self, field: str, from_init: bool) -> bool:
        """Whether a field of the section, as in `optimiser.clip`, has a say in the model of a first step.

        Runs that share a first step (`--base`) may differ in the others. `from_init`: it starts from another model.
        """
        return not field.startswith("optimiser.later_")

    def learns_at_once(self, step: int) -> bool:
        """Whether a step is learned by one look at each of its images, without any iteration."""
        return False

    def for_lesson(self, new_classes: int) -> Mapping[str, Any]:
        """Fields to change where a model is taught `new_classes` classes from few images (`comastre learn`)."""
        return {}
