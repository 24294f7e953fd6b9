"""The two-stage segmenter, assembled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from torch import Tensor, nn

from comastre.config.run import ModelConfig
from comastre.methods.comastre.class_decoder import ClassDecoder, Recognition
from comastre.nets.backbone import Backbone
from comastre.nets.mask_decoder import MaskDecoder
from comastre.nets.outputs import PixelEmbeddings, StageOne
from comastre.nets.pixel_decoder import PixelDecoder

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Segmenter(nn.Module):
    """Stage 1 proposes class-agnostic masks with objectness, stage 2 recognises them; grows by one task at a time."""

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
        self.auxiliary_head: nn.Module | None = None

    @property
    def tasks(self) -> tuple[int, ...]:
        """Classes of each task learned so far."""
        return tuple(classifier.out_features for classifier in self.class_decoder.classifiers)  # type: ignore[misc]

    @property
    def num_classes(self) -> int:
        return sum(self.tasks)

    def propose(self, images: Tensor, padding: Tensor | None = None, every_layer: bool = True) -> StageOne:
        """Stage 1 on images (B, 3, H, W) in 0..1; `padding` (B, H, W) is true outside an image of a mixed batch."""
        pixels = self.pixel_decoder(self.backbone(images, padding), padding)
        return StageOne(pixels, self.mask_decoder(pixels, every_layer))

    def recognise(
        self, pixels: PixelEmbeddings, embeddings: Tensor, mask_logits: Tensor | None = None, first_task: int = 0
    ) -> Recognition:
        """Stage 2 on proposals e (B, M, d) with their mask logits (B, M, h, w), for tasks from `first_task` on."""
        return self.class_decoder(pixels, embeddings, mask_logits, first_task)

    def add_task(self, num_classes: int) -> None:
        """Grow by a task: fresh task query, classifier and, from the second task on, auxiliary head."""
        if num_classes < 1:
            raise ValueError(f"a task needs at least one class, not {num_classes}")
        self.class_decoder.add_task(num_classes)
        dim = self.config.pixel_decoder.dim
        device = self.mask_decoder.norm.weight.device
        self.auxiliary_head = (
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1 + num_classes)).to(device)
            if len(self.tasks) > 1
            else None
        )

    def freeze_batch_norm(self, frozen: bool = True) -> None:
        """Hold the backbone's BatchNorm statistics still, or let them follow the data again."""
        self.backbone.frozen_batch_norm = frozen or self.config.backbone.frozen_batch_norm
        self.backbone.train(self.training)

    def forward(self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """Run `work` inside this module's forward: a training step calls several parts, DDP must see one call."""
        return work(*args, **kwargs)


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
