"""The values that travel between the parts of the model and to the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comastre.nets.mask_features import MaskFeatures, MaskProducts


@dataclass(frozen=True)
class PixelEmbeddings:
    """What the pixel decoder gives for a batch of B images."""

    levels: tuple[Tensor, Tensor, Tensor]
    """E^1..E^3: (B, d, H/32, W/32), (B, d, H/16, W/16), (B, d, H/8, W/8)."""
    finest: MaskFeatures
    """E^4, at H/4, W/4."""
    padding: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    """Per level (B, h, w), true where there is only padding; None where no image is padded."""

    @property
    def mask_features(self) -> Tensor:
        """E^4: (B, d, H/4, W/4)."""
        return self.finest.projected


@dataclass(frozen=True)
class QueryMasks:
    """The masks of N queries: the prediction of one decoder layer."""

    embeddings: Tensor
    """Positional embeddings e: (B, N, d)."""
    masks: Tensor | MaskProducts
    """Mask logits (B, N, H/4, W/4), or what they are computed from."""

    @property
    def mask_logits(self) -> Tensor:
        """(B, N, H/4, W/4), of all queries."""
        return self.masks if isinstance(self.masks, Tensor) else self.masks.logits

    def mask_logits_of(self, query: Tensor) -> Tensor:
        """(B, M, H/4, W/4), of the queries at indices (B, M) alone."""
        if isinstance(self.masks, Tensor):
            return take_queries(self.masks, query)
        return self.masks.features.masks(take_queries(self.masks.kernels, query))


@dataclass(frozen=True)
class Proposals(QueryMasks):
    """Class-agnostic proposals: masks with objectness."""

    objectness_logits: Tensor
    """(B, N)."""


@dataclass(frozen=True)
class StageOne:
    """Everything that stage 1 gives for a batch."""

    pixels: PixelEmbeddings
    layers: tuple[Proposals, ...]
    """L + 1 predictions: the raw queries' first, the last decoder layer's last."""

    @property
    def final(self) -> Proposals:
        return self.layers[-1]


def mask_logits_side_by_side(layers: Sequence[QueryMasks], query: Tensor) -> Tensor:
    """(B, K * M, H/4, W/4): mask logits of K layers of one model, each at its own queries (K, B, M)."""
    products = [layer.masks for layer in layers if isinstance(layer.masks, MaskProducts)]
    if len(products) < len(layers) or any(each.features is not products[0].features for each in products):
        return torch.cat([layer.mask_logits_of(each) for layer, each in zip(layers, query, strict=True)], dim=1)
    # One product: its gradient is as large as E^4, and adding up one per layer takes longer than the product.
    kernels = [take_queries(each.kernels, rows) for each, rows in zip(products, query, strict=True)]
    return products[0].features.masks(torch.cat(kernels, dim=1))


def take_queries(values: Tensor, query: Tensor) -> Tensor:
    """Rows of values (B, N, ...) at indices (B, M): (B, M, ...)."""
    trailing = values.shape[2:]
    index = query.reshape(*query.shape, *(1 for _ in trailing)).expand(*query.shape, *trailing)
    return values.gather(1, index)
