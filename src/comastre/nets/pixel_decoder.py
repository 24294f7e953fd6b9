"""Mask2Former's pixel decoder: deformable attention over strides 32, 16 and 8, then one FPN step to stride 4."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comastre.config.sections import PixelDecoderConfig
from comastre.nets.attention import FeedForward, initialise_xavier
from comastre.nets.deformable_attention import DeformableAttention
from comastre.nets.made_again import made_again
from comastre.nets.mask_features import MaskFeatures
from comastre.nets.outputs import PixelEmbeddings
from comastre.nets.positions import sine_positions
from comastre.nets.precision import upcast
from comastre.nets.recompute import Recomputing

_GROUPS = 32
_LEVELS = 3


class DeformableLayer(nn.Module):
    """Deformable self-attention over all levels, then a feed-forward block; post-norm."""

    def __init__(self, config: PixelDecoderConfig) -> None:
        super().__init__()
        self.attention = DeformableAttention(config.dim, config.heads, _LEVELS, config.points)
        self.attention_norm = nn.LayerNorm(config.dim)
        self.feedforward = FeedForward(config.dim, config.feedforward)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        origins: tuple[Tensor, Tensor],
        shapes: Sequence[tuple[int, int]],
        padding: Tensor | None,
    ) -> Tensor:
        queries = tokens + positions
        with made_again(queries, torch.add, tokens, positions):
            attended = self.attention(queries, tokens, origins, shapes, padding)
        return self.feedforward(self.attention_norm(tokens + attended))


class PixelDecoder(Recomputing):
    """Backbone maps (strides 4, 8, 16, 32) to E^1..E^3 (strides 32, 16, 8) and E^4 (stride 4)."""

    def __init__(self, channels: Sequence[int], config: PixelDecoderConfig) -> None:
        super().__init__()
        self.dim = config.dim
        self.float32 = config.float32
        # Coarse to fine, as the levels are read.
        self.projections = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, config.dim, 1), nn.GroupNorm(_GROUPS, config.dim))
            for width in reversed(channels[1:])
        )
        self.merges = nn.ModuleList(_smoothing(config.dim) for _ in range(_LEVELS - 1 if config.top_down else 0))
        self.level_embedding = nn.Embedding(_LEVELS, config.dim)
        self.layers = nn.ModuleList(DeformableLayer(config) for _ in range(config.layers))
        self.lateral = nn.Sequential(
            nn.Conv2d(channels[0], config.dim, 1, bias=False), nn.GroupNorm(_GROUPS, config.dim)
        )
        self.smooth = _smoothing(config.dim)
        self.mask_projection = nn.Conv2d(config.dim, config.dim, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as Mask2Former's does, layer by layer (docs/specification.md, Initialisation)."""
        initialise_xavier(self.projections)
        for layer in self.layers:
            assert isinstance(layer, DeformableLayer)
            initialise_xavier(layer.feedforward)  # its attention has started already, in a way of its own
        others = [*self.merges.modules(), *self.lateral, *self.smooth, self.mask_projection]
        for module in others:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, features: Sequence[Tensor], padding: Tensor | None = None) -> PixelEmbeddings:
        """`padding` (B, H, W) is true where an image of the batch has no pixels."""
        if not self.float32:
            return self._decode(features, padding)
        with torch.autocast(features[0].device.type, enabled=False):
            return self._decode([upcast(feature) for feature in features], padding)

    def _decode(self, features: Sequence[Tensor], padding: Tensor | None) -> PixelEmbeddings:
        coarse_to_fine = list(reversed(features[1:]))
        shapes = [(level.shape[-2], level.shape[-1]) for level in coarse_to_fine]
        paddings = [None if padding is None else _shrink_padding(padding, shape) for shape in shapes]
        maps = [
            _project(block, feature, mask)
            for block, feature, mask in zip(self.projections, coarse_to_fine, paddings, strict=True)
        ]
        for level, smooth in enumerate(self.merges, start=1):
            coarser, mask = maps[level - 1], paddings[level - 1]
            coarser = coarser if mask is None else coarser.masked_fill(mask[:, None], 0.0)
            maps[level] = _merge(smooth, maps[level], coarser, paddings[level])

        tokens = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], dim=1)  # (B, S, d)
        if torch.is_autocast_enabled(tokens.device.type):
            tokens = upcast(tokens)  # only products are coarse then, not positions and what layers add to
        positions = torch.cat(
            [
                sine_positions(shape, self.dim, tokens.device, mask).to(tokens.dtype) + embedding
                for shape, mask, embedding in zip(shapes, paddings, self.level_embedding.weight, strict=True)
            ],
            dim=1,
        )  # (1 or B, S, d)
        reference = torch.cat([_pixel_centres(shape, tokens.device) for shape in shapes])  # (S, 2)
        flat_padding = (
            None if padding is None else torch.cat([mask.flatten(1) for mask in paddings if mask is not None], 1)
        )
        origins: tuple[Tensor, Tensor] | None = None
        for layer in self.layers:
            assert isinstance(layer, DeformableLayer)
            origins = origins or layer.attention.origins(reference, shapes)
            tokens = self.lightly(layer, tokens, positions, origins, shapes, flat_padding)

        coarse, middle, fine = (
            part.unflatten(1, shape).permute(0, 3, 1, 2)
            for part, shape in zip(tokens.split([h * w for h, w in shapes], dim=1), shapes, strict=True)
        )
        assert self.mask_projection.bias is not None
        weight, bias = self.mask_projection.weight.flatten(1), self.mask_projection.bias
        finest = MaskFeatures(self.lightly(self._finest, features[0], fine, padding), weight, bias)
        return PixelEmbeddings((coarse, middle, fine), finest, (paddings[0], paddings[1], paddings[2]))

    def _finest(self, feature: Tensor, fine: Tensor, padding: Tensor | None) -> Tensor:
        """The FPN step: the stride 8 level, upsampled, joins the stride 4 feature."""
        mask = None if padding is None else _shrink_padding(padding, (feature.shape[-2], feature.shape[-1]))
        return _merge(self.smooth, _project(self.lateral, feature, mask), fine, mask)


def _smoothing(dim: int) -> nn.Sequential:
    """What follows when two levels were added."""
    return nn.Sequential(nn.Conv2d(dim, dim, 3, padding=1, bias=False), nn.GroupNorm(_GROUPS, dim))


def _merge(smooth: nn.Module, maps: Tensor, coarser: Tensor, padding: Tensor | None) -> Tensor:
    """A level with the next coarser one added to it."""
    size = (maps.shape[-2], maps.shape[-1])
    joined = maps + F.interpolate(coarser, size=size, mode="bilinear", align_corners=False)
    if padding is not None:
        joined = joined.masked_fill(padding[:, None], 0.0)  # what the convolution sees beyond an image that is alone
    return F.relu(_project(smooth, joined, padding), inplace=True)


def _project(block: nn.Module, maps: Tensor, padding: Tensor | None) -> Tensor:
    """A block's convolution and GroupNorm."""
    assert isinstance(block, nn.Sequential) and isinstance(block[1], nn.GroupNorm)
    return _normalise(block[1], block[0](maps), padding)


def _normalise(norm: nn.GroupNorm, maps: Tensor, padding: Tensor | None) -> Tensor:
    """GroupNorm of maps (B, c, h, w) whose statistics leave out padding (B, h, w).

    Otherwise an image's result would depend on how much padding the other images of its batch force upon it.
    """
    if padding is None:
        return norm(maps)
    groups = maps.float().unflatten(1, (norm.num_groups, -1))  # (B, groups, c / groups, h, w)
    real = (~padding)[:, None, None].to(groups.dtype)
    count = real.sum(dim=(2, 3, 4), keepdim=True) * groups.shape[2]
    mean = (groups * real).sum(dim=(2, 3, 4), keepdim=True) / count
    centred = groups - mean
    variance = (centred.square() * real).sum(dim=(2, 3, 4), keepdim=True) / count
    normalised = (centred * (variance + norm.eps).rsqrt()).flatten(1, 2)
    return (normalised * norm.weight[:, None, None] + norm.bias[:, None, None]).to(maps.dtype)


def _pixel_centres(shape: tuple[int, int], device: torch.device) -> Tensor:
    """(h * w, 2): x and y of every pixel centre in 0..1."""
    height, width = shape
    rows = (torch.arange(height, device=device, dtype=torch.float32) + 0.5) / height
    columns = (torch.arange(width, device=device, dtype=torch.float32) + 0.5) / width
    return torch.stack((columns.repeat(height), rows.repeat_interleave(width)), dim=-1)


def _shrink_padding(padding: Tensor, shape: tuple[int, int]) -> Tensor:
    """(B, h, w): true where a cell of the level starts in padding."""
    return F.interpolate(padding[:, None].float(), size=shape, mode="nearest")[:, 0].bool()
