"""Swin as a feature pyramid for images of any size, with a norm at the end of each stage, as Mask2Former has it."""

from __future__ import annotations

from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor, nn

_PATCH = 4


class _FeatureInfo:
    """Which maps there are, as timm's pyramids say it."""

    def __init__(self, stages: list[dict[str, Any]]) -> None:
        self._stages = stages

    def reduction(self) -> list[int]:
        return [int(stage["reduction"]) for stage in self._stages]

    def channels(self) -> list[int]:
        return [int(stage["num_chs"]) for stage in self._stages]


class SwinPyramid(nn.Module):
    """timm's Swin, whose own pyramid has no norms and reads images of one size.

    The last norm, which only a classifier reads, is left out.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.model = _create(name, options)
        self.model.norm = nn.Identity()
        self.feature_info = _FeatureInfo(self.model.feature_info)
        self.pretrained_cfg = self.model.pretrained_cfg
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in self.feature_info.channels())

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> maps (B, c, H / s, W / s), s = 4, 8, 16, 32."""
        height, width = images.shape[-2:]
        tokens = self.model.patch_embed(F.pad(images, (0, -width % _PATCH, 0, -height % _PATCH)))  # (B, h, w, c)
        maps = []
        for stage, norm in zip(self.model.layers, self.norms, strict=True):
            tokens = stage.downsample(tokens)
            for block in stage.blocks:
                tokens = tokens + block.drop_path1(_attend(block, block.norm1(tokens)))
                tokens = tokens + block.drop_path2(block.mlp(block.norm2(tokens)))
            maps.append(norm(tokens).permute(0, 3, 1, 2))
        return maps


def _create(name: str, options: dict[str, Any]) -> Any:
    return timm.create_model(name, num_classes=0, strict_img_size=False, always_partition=True, **options)


def _attend(block: Any, tokens: Tensor) -> Tensor:
    """Attention of tokens (B, h, w, c) within (shifted) windows.

    As Swin does for dense tasks: the map is padded to whole windows first and shifted then; timm does it the other way
    round, which is the same only where nothing is padded.
    """
    height, width = tokens.shape[1:3]
    window, shift = block.window_size, block.shift_size
    padded = F.pad(tokens, (0, 0, 0, -width % window[1], 0, -height % window[0]))
    shifted = torch.roll(padded, (-shift[0], -shift[1]), dims=(1, 2)) if any(shift) else padded
    windows = window_partition(shifted, window).flatten(1, 2)  # (B windows, area, c)
    attended = block.attn(windows, mask=block.get_attn_mask(shifted))
    joined = window_reverse(attended.unflatten(1, window), window, *shifted.shape[1:3])  # (B, h', w', c)
    unshifted = torch.roll(joined, shift, dims=(1, 2)) if any(shift) else joined
    return unshifted[:, :height, :width]


def is_swin(name: str) -> bool:
    """Whether timm's model of that name is a Swin of the first version."""
    return name.startswith("swin_")
