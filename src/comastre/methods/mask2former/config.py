"""The section of Mask2Former: the segmenter and its losses; defaults are those of the released code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from comastre.config.sections import (
    MaskDecoderConfig,
    MaskLossConfig,
    MethodConfig,
    PixelDecoderConfig,
    PositiveInt,
    Share,
    Weight,
)
from comastre.section import Section

# --- the segmenter ---------------------------------------------------------------------------------------------------


class QueryDecoderConfig(MaskDecoderConfig):
    num_queries: PositiveInt = 100
    """Queries N."""
    softmax_masks: bool = False
    """Queries share each pixel: a mask is a softmax over them in place of a sigmoid (CoMFormer)."""


class QueryInferenceConfig(Section):
    style: Literal["panoptic", "semantic"] = "panoptic"
    """panoptic: sure masks compete, and what none has is background; semantic: every pixel gets a class (dense)."""
    score: Share = 0.8
    """Only queries whose class has a probability above this take part (panoptic)."""
    merge: Literal["mask2former", "strict", "transformers"] = "mask2former"
    """Which pixels a segment has kept: all that it wins (Mask2Former), those inside its own mask alone (ours), or as
    transformers counts them (panoptic)."""
    overlap: Share = 0.8
    """A segment must keep this share of its own mask after the merge (panoptic)."""
    mask_threshold: Share = 0.5
    """Mask probability from which a pixel belongs to a query (panoptic)."""
    stuff: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Classes, counted from 0 in learning order, whose segments are one (panoptic)."""


SIZES: Mapping[str, Mapping[str, Any]] = {
    # For 64 to 128 px on a CPU: about half a million weights.
    "tiny": {
        "pixel_decoder": {"dim": 64, "layers": 1, "heads": 4, "points": 4, "feedforward": 128},
        "mask_decoder": {"num_queries": 16, "layers": 3, "heads": 4, "feedforward": 128},
    },
    # For real photographs on a CPU.
    "small": {
        "pixel_decoder": {"dim": 128, "layers": 2, "heads": 8, "points": 4, "feedforward": 256},
        "mask_decoder": {"num_queries": 20, "layers": 6, "heads": 8, "feedforward": 512},
    },
}
"""Fields of the smaller sizes; r50 and r101 have the defaults."""


class QueryNet(Section):
    """The parts of the segmenter behind its backbone."""

    pixel_decoder: PixelDecoderConfig = PixelDecoderConfig()
    mask_decoder: QueryDecoderConfig = QueryDecoderConfig()
    inference: QueryInferenceConfig = QueryInferenceConfig()

    @model_validator(mode="after")
    def _check_divisible(self) -> Self:
        dim = self.pixel_decoder.dim
        if dim % 32:
            raise ValueError(f"pixel_decoder.dim is {dim} but GroupNorm needs a multiple of 32")
        for name in ("pixel_decoder", "mask_decoder"):
            heads = getattr(self, name).heads
            if dim % heads:
                raise ValueError(f"{name}.heads is {heads} but must divide pixel_decoder.dim = {dim}")
        return self


# --- losses ----------------------------------------------------------------------------------------------------------


class QueryMatchingConfig(Section):
    """What decides which query stands for which mask; with softmax masks the weights are not used (CoMFormer)."""

    classification: Weight = 2.0
    """Weight of the class probability in the matching cost."""
    bce: Weight = 5.0
    """Weight of the mask cross-entropy in the matching cost."""
    dice: Weight = 5.0
    """Weight of the dice distance in the matching cost."""
    points: PositiveInt = 12544
    """Random points per image on which costs are computed."""


class QueryClassificationConfig(Section):
    loss: Literal["cross_entropy", "focal"] = "cross_entropy"
    """Over the classes and "no object": a weighted mean (Mask2Former), or a focal loss (CoMFormer)."""
    no_object: Weight = 0.1
    """Weight of queries without a mask in the cross-entropy."""
    alpha: Weight = 5.0
    """Factor of the focal loss."""
    gamma: Weight = 1.0
    """Focusing strength of the focal loss."""


class QueryLossWeights(Section):
    """Weights of the named terms."""

    classification: Weight = 2.0
    """Class of every query; as for every weight, 0 switches the term off and skips its work."""
    mask_bce: Weight = 5.0
    """Cross-entropy of matched masks."""
    mask_dice: Weight = 5.0
    """Dice loss of matched masks."""


class QueryLossConfig(Section):
    matching: QueryMatchingConfig = QueryMatchingConfig()
    masks: MaskLossConfig = MaskLossConfig()
    classification: QueryClassificationConfig = QueryClassificationConfig()
    weights: QueryLossWeights = QueryLossWeights()


# --- the section -----------------------------------------------------------------------------------------------------


class Mask2FormerConfig(QueryNet, QueryLossConfig, MethodConfig):
    """The section `mask2former` of a run."""

    model_sections: ClassVar[tuple[str, ...]] = tuple(QueryNet.model_fields)

    @classmethod
    def for_size(cls, size: str) -> Mapping[str, Any]:
        return SIZES.get(size, {})
