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

    optimiser: SgdConfig = SgdConfig()
    head: HeadConfig = HeadConfig()

    @classmethod
    def for_size(cls, size: str) -> Mapping[str, Any]:
        return SIZES.get(size, {})


class MibConfig(DeepLabConfig):
    distillation: Weight = 10.0
    """Weight of the unbiased distillation (MiB's lambda)."""
    from_background: bool = True
    """New classes begin as shares of the background."""
