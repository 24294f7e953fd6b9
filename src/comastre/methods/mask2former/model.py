"""Mask2Former, assembled: every query is a mask with a class or "no object"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from comastre.config.sections import BackboneConfig
from comastre.methods.mask2former import inference
from comastre.methods.mask2former.config import QueryNet
from comastre.nets.backbone import Backbone
from comastre.nets.mask_decoder import QueryDecoder
from comastre.nets.outputs import QueryMasks
from comastre.nets.pixel_decoder import PixelDecoder
from comastre.segmentation import Segmentation, Size


@dataclass(frozen=True)
class Prediction:
    """What the model says of a batch."""

    features: tuple[Tensor, ...]
    """The backbone's four maps, then the mask features E^4."""
    layers: tuple[QueryMasks, ...]
    """K predictions: the raw queries' first, the last decoder layer's last."""
    class_logits: Tensor
    """(K, B, N, C + 1), classes in learning order, then "no object"."""

    @property
    def num_classes(self) -> int:
        return self.class_logits.shape[-1] - 1


class ClassHead(nn.Module):
    """One linear classifier per task, and one for "no object", which stays."""

    def __init__(self, dim: int, tasks: Sequence[int]) -> None:
        super().__init__()
        self.dim = dim
        self.classifiers = nn.ModuleList()
        self.no_object = nn.Linear(dim, 1)
        for num_classes in tasks:
            self.add_task(num_classes)

    def add_task(self, num_classes: int) -> None:
        """A fresh classifier for new classes."""
        self.classifiers.append(nn.Linear(self.dim, num_classes, device=self.no_object.weight.device))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Logits (..., C + 1) of query embeddings (..., d)."""
        return torch.cat([classify(embeddings) for classify in (*self.classifiers, self.no_object)], dim=-1)


class Mask2Former(nn.Module):
    """Backbone, pixel decoder and Transformer decoder as in CoMasTRe's stage 1, and one classifier over all classes."""

    def __init__(self, config: QueryNet, backbone: Backbone, tasks: Sequence[int]) -> None:
        super().__init__()
        dim = config.pixel_decoder.dim
        self.config = config
        self.backbone = backbone
        self.pixel_decoder = PixelDecoder(backbone.channels, config.pixel_decoder)
        self.mask_decoder = QueryDecoder(dim, config.mask_decoder, config.mask_decoder.softmax_masks)
        self.class_head = ClassHead(dim, tasks)

    @property
    def tasks(self) -> tuple[int, ...]:
        """Classes of each task learned so far."""
        return tuple(classifier.out_features for classifier in self.class_head.classifiers)  # type: ignore[misc]

    @property
    def num_classes(self) -> int:
        return sum(self.tasks)

    def forward(self, images: Tensor, padding: Tensor | None = None, every_layer: bool = True) -> Prediction:
        """Images (B, 3, H, W) in 0..1; `padding` (B, H, W) is true outside an image of a mixed batch.

        Without `every_layer` there is only the last decoder layer's prediction.
        """
        features = self.backbone(images, padding)
        pixels = self.pixel_decoder(features, padding)
        layers = self.mask_decoder(pixels, every_layer)
        class_logits = self.class_head(torch.stack([layer.embeddings for layer in layers]))
        return Prediction((*features, pixels.mask_features), layers, class_logits)

    def segment(
        self,
        images: Tensor,
        padding: Tensor | None = None,
        sizes: Sequence[Size] | None = None,
        original_sizes: Sequence[Size] | None = None,
    ) -> list[Segmentation]:
        """What it sees in images (B, 3, H, W) in 0..1; `inference.segment` says what the sizes are."""
        return inference.segment(self, images, padding, sizes, original_sizes)

    def add_task(self, num_classes: int) -> None:
        """Grow by a task: a fresh classifier; "no object" is as it was."""
        if num_classes < 1:
            raise ValueError(f"a task needs at least one class, not {num_classes}")
        self.class_head.add_task(num_classes)


def build_model(config: QueryNet, backbone: BackboneConfig, tasks: Sequence[int]) -> Mask2Former:
    """A model with a fresh classifier for every task of `tasks` (number of classes each)."""
    return Mask2Former(config, Backbone(backbone), tasks)
