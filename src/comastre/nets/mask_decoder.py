"""Mask2Former's Transformer decoder, whose queries become masks; with an objectness score it is the paper's stage 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comastre.config.sections import MaskDecoderConfig
from comastre.nets.attention import FeedForward, MultiHeadAttention, initialise_xavier, open_pixels
from comastre.nets.mask_features import MaskFeatures, MaskProducts
from comastre.nets.outputs import PixelEmbeddings, Proposals, QueryMasks
from comastre.nets.positions import sine_positions
from comastre.nets.recompute import Recomputing

_LEVELS = 3


class MaskDecoderLayer(nn.Module):
    """Masked cross-attention, self-attention, feed-forward; post-norm."""

    def __init__(self, dim: int, config: MaskDecoderConfig) -> None:
        super().__init__()
        self.cross_attention = MultiHeadAttention(dim, config.heads)
        self.cross_norm = nn.LayerNorm(dim)
        self.self_attention = MultiHeadAttention(dim, config.heads)
        self.self_norm = nn.LayerNorm(dim)
        self.feedforward = FeedForward(dim, config.feedforward)

    def forward(self, queries: Tensor, positions: Tensor, keys: Tensor, values: Tensor, open_mask: Tensor) -> Tensor:
        queries = self.cross_norm(queries + self.cross_attention(queries + positions, keys, values, open_mask))
        placed = queries + positions
        queries = self.self_norm(queries + self.self_attention(placed, placed, queries))
        return self.feedforward(queries)


class MaskHead(nn.Module):
    """The three-layer MLP whose product with E^4 is a mask."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))

    def forward(self, embeddings: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            embeddings = F.relu(layer(embeddings), inplace=True)
        return self.layers[-1](embeddings)


class QueryDecoder(Recomputing):
    """N learnable positional queries read the pixel embeddings, coarse to fine, L times.

    With `softmax_masks` queries share each pixel: a mask is a softmax over them in place of a sigmoid (CoMFormer).
    """

    def __init__(self, dim: int, config: MaskDecoderConfig, softmax_masks: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.softmax_masks = softmax_masks
        self.query_features = nn.Embedding(config.num_queries, dim)
        self.query_positions = nn.Embedding(config.num_queries, dim)
        self.level_embedding = nn.Embedding(_LEVELS, dim)
        self.layers = nn.ModuleList(MaskDecoderLayer(dim, config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim)
        self.add_heads(dim)
        initialise_xavier(self.layers)

    def add_heads(self, dim: int) -> None:
        """What is read off a query's embedding."""
        self.mask_head = MaskHead(dim)

    def forward(self, pixels: PixelEmbeddings, every_layer: bool = True) -> tuple[QueryMasks, ...]:
        """L + 1 predictions, the raw queries' first; only the last one where `every_layer` is false."""
        positions = [self.query_positions.weight] * len(self.layers)
        return self.decode(pixels, self.query_features.weight, positions, self.mask_head, every_layer)

    def decode(
        self,
        pixels: PixelEmbeddings,
        features: Tensor,
        positions: Sequence[Tensor],
        mask_head: nn.Module,
        every_layer: bool,
    ) -> tuple[QueryMasks, ...]:
        """What queries (N, d) with a position (N, d) for every layer see; they attend to each other and to pixels."""
        sizes = [(level.shape[-2], level.shape[-1]) for level in pixels.levels]
        values = [
            level.flatten(2).transpose(1, 2) + embedding
            for level, embedding in zip(pixels.levels, self.level_embedding.weight, strict=True)
        ]  # (B, K, d) each
        keys = [
            value + sine_positions(size, self.dim, value.device, padding).to(value.dtype)
            for value, size, padding in zip(values, sizes, pixels.padding, strict=True)
        ]
        with torch.no_grad():  # a mask that only guides attention is computed at the level's own size
            guides = [pixels.finest.resized(size) for size in sizes]

        batch = len(values[0])
        queries = features.expand(batch, -1, -1)
        predictions = []
        for index, (layer, position) in enumerate(zip(self.layers, positions, strict=True)):
            level = index % _LEVELS
            embeddings = self.norm(queries)
            kernels = mask_head(embeddings)
            if every_layer:
                predictions.append(self.predict(embeddings, kernels, pixels.finest))
            with torch.no_grad():
                guide = guides[level].masks(kernels)
                open_mask = open_pixels(guide, sizes[level], pixels.padding[level], self.softmax_masks)
            queries = self.lightly(layer, queries, position, keys[level], values[level], open_mask)
        embeddings = self.norm(queries)
        predictions.append(self.predict(embeddings, mask_head(embeddings), pixels.finest))
        return tuple(predictions)

    def predict(self, embeddings: Tensor, kernels: Tensor, features: MaskFeatures) -> QueryMasks:
        """What is said of positional embeddings e (B, N, d) with their kernels MLP(e)."""
        masks = MaskProducts(kernels, features)
        # A softmax needs the masks of all queries, for the matching and again for the losses.
        return QueryMasks(embeddings, masks.logits if self.softmax_masks else masks)


class MaskDecoder(QueryDecoder):
    """The paper's f: masks with objectness."""

    def add_heads(self, dim: int) -> None:
        super().add_heads(dim)
        self.objectness_head = nn.Linear(dim, 1)

    def forward(self, pixels: PixelEmbeddings, every_layer: bool = True) -> tuple[Proposals, ...]:
        """L + 1 predictions, the raw queries' first; only the last one where `every_layer` is false."""
        return tuple(
            Proposals(layer.embeddings, layer.masks, self.objectness_head(layer.embeddings).squeeze(-1))
            for layer in super().forward(pixels, every_layer)
        )
