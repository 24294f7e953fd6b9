"""E^4 and the masks that are products with it, computed only for the queries and at the places that are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.nets.deformable_attention import sample_and_sum
from comastre.nets.precision import upcast


@dataclass(frozen=True)
class MaskFeatures:
    """E^4 = W r + b, kept as the map r and its projection.

    A mask is a product m . E^4 = (m W) . r + m . b, so that a few queries are projected in place of all pixels.
    """

    maps: Tensor
    """r: (B, c, h, w)."""
    weight: Tensor
    """W: (d, c)."""
    bias: Tensor
    """b: (d,)."""

    @property
    def projected(self) -> Tensor:
        """E^4 itself: (B, d, h, w)."""
        dtype = self.maps.dtype
        with torch.autocast(self.maps.device.type, enabled=False):
            return F.conv2d(self.maps, self.weight[..., None, None].to(dtype), self.bias.to(dtype))

    def resized(self, size: tuple[int, int]) -> MaskFeatures:
        """Those that give masks at another size: resizing is linear, so it may come before the product."""
        return replace(self, maps=F.interpolate(self.maps, size=size, mode="bilinear", align_corners=False))

    def sampled(self, points: Tensor) -> SampledFeatures:
        """Those that give masks at points (B, P, 2), x and y in 0..1: bilinear, and zero outside."""
        size = self.maps.shape[-2:]
        pixels = upcast(self.maps).flatten(2).transpose(1, 2)[:, :, None]  # (B, h * w, 1, c)
        places = points.to(pixels.dtype)[:, :, None, None, None]  # (B, P, 1, 1, 1, 2)
        rows = sample_and_sum(pixels, [(size[0], size[1])], places, torch.ones_like(places[..., 0]))
        scale = places.new_tensor([size[1], size[0]])
        pixel = places[:, :, 0, 0, 0] * scale - 0.5
        coverage = torch.minimum(pixel + 1, scale - pixel).clamp(0, 1).prod(-1)
        return SampledFeatures(rows, coverage, self)

    def fold(self, kernels: Tensor) -> tuple[Tensor, Tensor]:
        """m W (B, N, c) and m . b (B, N) of kernels m (B, N, d)."""
        return kernels @ self.weight.to(kernels.dtype), kernels @ self.bias.to(kernels.dtype)

    def masks(self, kernels: Tensor) -> Tensor:
        """Mask logits (B, N, h, w) of kernels (B, N, d)."""
        folded, offset = self.fold(kernels)
        pixels = self.maps.flatten(2).to(folded.dtype)  # (B, c, h * w)
        return torch.baddbmm(offset[..., None], folded, pixels).unflatten(-1, self.maps.shape[-2:])


@dataclass(frozen=True)
class SampledFeatures:
    """What E^4 is at some points."""

    rows: Tensor
    """r at the points: (B, P, c)."""
    coverage: Tensor
    """(B, P): 1, or what of a point near the border has pixels around it; b counts for no more than that."""
    features: MaskFeatures

    def logits(self, kernels: Tensor) -> Tensor:
        """Mask logits (B, N, P), in full precision, of kernels (B, N, d)."""
        with torch.autocast(kernels.device.type, enabled=False):
            folded, offset = self.features.fold(kernels.to(self.rows.dtype))
            return torch.baddbmm(offset[..., None] * self.coverage[:, None], folded, self.rows.transpose(1, 2))


@dataclass(frozen=True)
class MaskProducts:
    """The masks of N queries that are yet to be computed."""

    kernels: Tensor
    """m: (B, N, d)."""
    features: MaskFeatures

    @property
    def logits(self) -> Tensor:
        """(B, N, h, w)."""
        return self.features.masks(self.kernels)
