"""Sections of the per-pixel methods; defaults are what their papers and authors used on Pascal VOC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from comastre.config.sections import MethodConfig, OptimiserConfig, PositiveInt, Share, Weight
from comastre.section import Section


class SgdConfig(OptimiserConfig):
    """SGD as in the line of methods that MiB began."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 0.01
    """Learning rate of the first step."""
    later_learning_rate: Annotated[float, Field(gt=0.0)] = 0.001
    """Learning rate of later steps."""
    backbone_factor: Weight = 1.0
    """Learning-rate factor of the backbone."""
    weight_decay: Weight = 1e-4
    """Weight decay, of all weights."""
    clip: Weight = 0.0
    """Gradient norm limit of the whole model; 0 switches clipping off."""
    momentum: Share = 0.9
    """Of SGD."""
    nesterov: bool = True
    """Nesterov's form of the momentum."""


class HeadConfig(Section):
    """What DeepLabv3 is, beside its backbone."""

    output_stride: Literal[8, 16] = 16
    """Stride of the backbone's last features: stages behind it are dilated."""
    channels: PositiveInt = 256
    """Of the pyramid and of what the classifiers read."""
    rates: tuple[PositiveInt, PositiveInt, PositiveInt] = (6, 12, 18)
    """Dilations of the pyramid."""


SIZES: Mapping[str, Mapping[str, Any]] = {
    # Images of 64 px would have 4 x 4 features at stride 16; rates that fit into the 8 x 8 of stride 8.
    "tiny": {"head": {"output_stride": 8, "channels": 64, "rates": (1, 2, 3)}},
    "small": {"head": {"channels": 128}},
}
"""Fields of the smaller sizes; r50 and r101 have the defaults."""


class DeepLabConfig(MethodConfig):
    """Of DeepLabv3 alone, as fine-tuning and joint training have it."""

    model_sections: ClassVar[tuple[str, ...]] = ("head",)
    in_first_step: ClassVar[tuple[str, ...]] = ("head.", "optimiser.")
    """Beginnings of the fields that a first step reads; the others remember an old model, which it has not."""

    optimiser: SgdConfig = SgdConfig()
    head: HeadConfig = HeadConfig()

    @classmethod
    def for_size(cls, size: str) -> Mapping[str, Any]:
        return SIZES.get(size, {})

    def shapes_first_step(self, field: str, from_init: bool) -> bool:
        return field.startswith(self.in_first_step) and super().shapes_first_step(field, from_init)


class MibConfig(DeepLabConfig):
    distillation: Weight = 10.0
    """Weight of the unbiased distillation (MiB's lambda)."""
    from_background: bool = True
    """New classes begin as shares of the background."""


class PlopConfig(DeepLabConfig):
    pod_features: Weight = 0.01
    """Weight of local POD on the backbone's stages and the head."""
    pod_logits: Weight = 0.0005
    """Weight of local POD on the logits."""
    scales: tuple[PositiveInt, ...] = (1, 2, 4)
    """Windows per side whose rows and columns are compared."""
    thresholds: Literal["median", "public_code"] = "median"
    """How sure the old model must be of a pseudo-label: surer than the class's median, or what PLOP's code finds."""
    threshold_floor: Share = 0.001
    """Least threshold."""


class SdrConfig(DeepLabConfig):
    # Features become sparse, and prototypes are gathered, from the first step on.
    in_first_step: ClassVar[tuple[str, ...]] = (*DeepLabConfig.in_first_step, "sparsity", "reshapes")

    # The rates go with batches of 8.
    optimiser: SgdConfig = SgdConfig(learning_rate=0.001, later_learning_rate=0.0001)
    distillation: Weight = 100.0
    """Weight of the unbiased distillation."""
    matching: Weight = 0.01
    """Weight of the distance of old classes' mean features to their prototypes."""
    attraction: Weight = 0.001
    """Weight of the distance of features to their class's prototype."""
    repulsion: Weight = 0.001
    """Weight of one over the distance of different classes' mean features."""
    sparsity: Weight = 0.001
    """Weight of the sparsity of features, in the first step too."""
    reshapes: Literal["by_class", "public_code"] = "by_class"
    """Features of a class as they are, or as the public code reshapes them (then in one process only)."""


class ReminderConfig(PlopConfig):
    similarity: Weight = 0.5
    """Weight of the distillation by similarity."""
    delta: Weight = 0.0
    """Shares of similarity below this, divided by the number of old classes, count as 0."""
    temperature: Annotated[float, Field(gt=0.0)] = 3.0
    """Of that distillation."""


class RcilConfig(DeepLabConfig):
    optimiser: SgdConfig = SgdConfig(learning_rate=0.02)
    distillation: Weight = 100.0
    """Weight of the unbiased distillation."""
    cube: Weight = 0.01
    """Weight of pooled cubes of the backbone's stages and, in space, the head."""
    last_cube: Weight = 0.0005
    """Weight of pooled cubes of the logits in space and the head over channels."""
    kernels: tuple[PositiveInt, ...] = (4, 8, 12, 16, 20, 24)
    """Sides of the windows that are pooled."""
    biases: Literal["balanced", "public_code"] = "balanced"
    """Biases of new classes as MiB's, or random beside the background's weights, as in the public code."""
