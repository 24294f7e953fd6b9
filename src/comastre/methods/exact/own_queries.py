"""Queries of a later step's own: they see the image through the frozen decoders, and no older query sees them.

As in ECLIPSE (CVPR 2024) there is a prompt for every decoder layer, and a mask head of their own. Older queries are
computed in the very calls of before, so that growth cannot change them by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from comastre.methods.comastre.class_decoder import ClassDecoder, Recognition
from comastre.methods.comastre.config import ModelConfig
from comastre.nets.backbone import Backbone
from comastre.nets.chain import Passed
from comastre.nets.mask_decoder import MaskDecoder, MaskHead
from comastre.nets.outputs import PixelEmbeddings, Proposals, StageOne

if TYPE_CHECKING:
    from comastre.methods.exact.model import ExactSegmenter


class OwnQueries(nn.Module):
    """What one step adds and trains: queries, a position of each at every layer, heads, a task query, a classifier."""

    def __init__(self, config: ModelConfig, number: int, num_classes: int) -> None:
        super().__init__()
        dim, layers = config.pixel_decoder.dim, config.mask_decoder.layers
        self.features = nn.Parameter(torch.zeros(number, dim))
        self.positions = nn.Parameter(torch.zeros(layers, number, dim))
        self.mask_head = MaskHead(dim)
        self.objectness_head = nn.Linear(dim, 1)
        self.task_query = nn.Parameter(torch.zeros(dim))
        self.classifier = nn.Linear(dim, num_classes)

    @torch.no_grad()
    def start(self, mask_decoder: MaskDecoder, class_decoder: ClassDecoder) -> None:
        """Begin as the trained queries, one after the other, with their heads; the classifier begins at random."""
        number, trained = len(self.features), mask_decoder.query_features.num_embeddings
        chosen = torch.arange(number, device=self.features.device) % trained
        self.features.copy_(mask_decoder.query_features.weight[chosen])
        self.positions.copy_(mask_decoder.query_positions.weight[chosen].expand_as(self.positions))
        self.mask_head.load_state_dict(mask_decoder.mask_head.state_dict())
        self.objectness_head.load_state_dict(mask_decoder.objectness_head.state_dict())
        self.task_query.copy_(class_decoder.task_queries[-1])

    def propose(self, decoder: MaskDecoder, pixels: PixelEmbeddings, every_layer: bool) -> tuple[Proposals, ...]:
        """Their masks and objectness, at every layer or at the last."""
        layers = decoder.decode(pixels, self.features, list(self.positions), self.mask_head, every_layer)
        return tuple(
            Proposals(layer.embeddings, layer.masks, self.objectness_head(layer.embeddings).squeeze(-1))
            for layer in layers
        )

    def recognise(
        self, decoder: ClassDecoder, pixels: PixelEmbeddings, embeddings: Tensor, masks: Tensor | None
    ) -> Recognition:
        """Logits of the step's classes for proposals e (B, M, d)."""
        return decoder.decode(pixels, embeddings, masks, [self.task_query], [self.classifier])


@dataclass(frozen=True)
class OwnView:
    """A model as the losses of a step see it that trains its own queries: a segmenter of those alone."""

    model: ExactSegmenter

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def tasks(self) -> tuple[int, ...]:
        return self.model.tasks

    @property
    def num_classes(self) -> int:
        return self.model.num_classes

    @property
    def backbone(self) -> Backbone:
        return self.model.backbone

    def propose(
        self, images: Tensor, padding: Tensor | None = None, every_layer: bool = True, begun: Passed | None = None
    ) -> StageOne:
        """Stage 1 of the newest queries."""
        with torch.no_grad():
            pixels = self.model.pixel_decoder(self.model.backbone(images, padding, begun), padding)
        return StageOne(pixels, self.model.newest.propose(self.model.mask_decoder, pixels, every_layer))

    def recognise(
        self, pixels: PixelEmbeddings, embeddings: Tensor, mask_logits: Tensor | None = None, first_task: int = 0
    ) -> Recognition:
        """Logits of the newest task's classes; nobody asks for others."""
        return self.model.newest.recognise(self.model.class_decoder, pixels, embeddings, mask_logits)


def build_own(config: ModelConfig, number: int, tasks: Sequence[int]) -> nn.ModuleList:
    """The queries of all later tasks; none where steps have no queries of their own."""
    return nn.ModuleList(OwnQueries(config, number, num_classes) for num_classes in tasks if number)
