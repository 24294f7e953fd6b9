"""The two-stage segmenter, assembled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from comastre.methods.class_statistics import KeptStatistics
from comastre.methods.comastre import inference
from comastre.methods.comastre.class_decoder import ClassDecoder, Recognition
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.features_in_masks import features_of, first_level
from comastre.nets.backbone import Backbone
from comastre.nets.chain import Passed
from comastre.nets.mask_decoder import MaskDecoder
from comastre.nets.outputs import PixelEmbeddings, StageOne
from comastre.nets.pixel_decoder import PixelDecoder
from comastre.segmentation import Segmentation, Size


@dataclass(frozen=True)
class Output:
    """Both stages on every proposal of a batch."""

    stage_one: StageOne
    recognition: Recognition


class Segmenter(nn.Module):
    """Stage 1 proposes class-agnostic masks with objectness, stage 2 recognises them; grows by one task at a time."""

    statistics: KeptStatistics | None = None
    """What its classes look like, where somebody has looked: no weight, and only later lessons read it."""

    def __init__(
        self,
        config: ModelConfig,
        backbone: Backbone,
        pixel_decoder: PixelDecoder,
        mask_decoder: MaskDecoder,
        class_decoder: ClassDecoder,
    ) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.pixel_decoder = pixel_decoder
        self.mask_decoder = mask_decoder
        self.class_decoder = class_decoder

    @property
    def tasks(self) -> tuple[int, ...]:
        """Classes of each task learned so far."""
        return self.class_decoder.tasks

    @property
    def num_classes(self) -> int:
        return sum(self.tasks)

    def propose(
        self, images: Tensor, padding: Tensor | None = None, every_layer: bool = True, begun: Passed | None = None
    ) -> StageOne:
        """Stage 1 on images (B, 3, H, W) in 0..1; `padding` (B, H, W) is true outside an image of a mixed batch.

        `begun` is what the backbone's `begin` gave for them, where somebody has it already.
        """
        pixels = self.pixel_decoder(self.backbone(images, padding, begun), padding)
        return StageOne(pixels, self.mask_decoder(pixels, every_layer))

    def recognise(
        self, pixels: PixelEmbeddings, embeddings: Tensor, mask_logits: Tensor | None = None, first_task: int = 0
    ) -> Recognition:
        """Stage 2 on proposals e (B, M, d) with their mask logits (B, M, h, w), for tasks from `first_task` on."""
        return self.class_decoder(pixels, embeddings, mask_logits, first_task)

    def forward(self, images: Tensor, padding: Tensor | None = None) -> Output:
        """Both stages on images (B, 3, H, W) in 0..1, for every proposal and every task."""
        stage_one = self.propose(images, padding)
        proposals = stage_one.final
        return Output(stage_one, self.recognise(stage_one.pixels, proposals.embeddings, proposals.mask_logits))

    @torch.no_grad()
    def scores(self, images: Tensor, padding: Tensor | None = None) -> dict[str, Tensor]:
        """All that it says of every proposal (B, N, ...), by names: what a lesson with a guarantee may not move."""
        found = self(images, padding)
        proposals = found.stage_one.final
        return {
            "masks": proposals.mask_logits,
            "objectness": proposals.objectness_logits,
            "classes": found.recognition.class_logits,
        }

    def segment(
        self,
        images: Tensor,
        padding: Tensor | None = None,
        sizes: Sequence[Size] | None = None,
        original_sizes: Sequence[Size] | None = None,
    ) -> list[Segmentation]:
        """Both stages on images (B, 3, H, W) in 0..1, merged; `inference.segment` says what the sizes are."""
        return inference.segment(self, images, padding, sizes, original_sizes)

    def look_at(self, pixels: PixelEmbeddings, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, N, D) of masks (B, N, h, w) bool, and which masks have any (B, N)."""
        return features_of(pixels, masks, first_level(self.config.class_decoder.level))

    def add_task(self, num_classes: int) -> None:
        """Grow by a task: a fresh task query and classifier."""
        if num_classes < 1:
            raise ValueError(f"a task needs at least one class, not {num_classes}")
        self.class_decoder.add_task(num_classes)


def auxiliary_head(model: Segmenter) -> nn.Module:
    """A head that tells "an old class" (0) from each class of the newest task; training alone needs it."""
    dim, num_new = model.config.pixel_decoder.dim, model.tasks[-1]
    device = model.mask_decoder.norm.weight.device
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1 + num_new)).to(device)


def build_segmenter(config: ModelConfig, tasks: Sequence[int]) -> Segmenter:
    """A segmenter with a fresh head for every task of `tasks` (number of classes each)."""
    backbone = Backbone(config.backbone)
    dim = config.pixel_decoder.dim
    return Segmenter(
        config,
        backbone,
        PixelDecoder(backbone.channels, config.pixel_decoder),
        MaskDecoder(dim, config.mask_decoder),
        ClassDecoder(dim, config.class_decoder, tasks),
    )
