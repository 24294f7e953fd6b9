"""DeepLabv3: a dilated backbone, atrous spatial pyramid pooling, and one 1 x 1 classifier per task.

Of the MiB line of methods: the pyramid's output is classified as it is, without dropout and without another layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.segmentation.deeplabv3 import ASPP  # type: ignore[import-untyped]

from comastre.enlarging import linear_weights, strips
from comastre.errors import UserError
from comastre.nets.backbone import Backbone
from comastre.nets.precision import upcast
from comastre.nets.stage_taps import tap_stages
from comastre.segmentation import Segmentation, Size, frames_of


@dataclass(frozen=True)
class DeepLabOutput:
    """What the network gives for a batch, everything at its own low resolution."""

    stages: tuple[Tensor, Tensor, Tensor, Tensor]
    """Four maps (B, c, h, w) of the backbone, before the stage's last activation where it has one."""
    body: Tensor
    """(B, c, h, w): the backbone's output, which the pyramid reads."""
    head: Tensor
    """(B, channels, h, w): what the classifiers read."""
    logits: Tensor
    """(B, 1 + C, h, w): background first, then all classes in learning order."""


class ImagePooling(nn.Module):
    """The mean over an image, padding left out, through a layer, back at every place."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, features: Tensor, padding: Tensor | None) -> Tensor:
        """(B, c, h, w) and padding (B, h, w) -> (B, channels, h, w)."""
        if self.training and self.norm.training and len(features) == 1 and type(self.norm) is nn.BatchNorm2d:
            raise UserError(
                "DeepLab's image pooling cannot normalise a single image: "
                "give each process and accumulated part at least 2 images (training.batch_size)."
            )
        if padding is None:
            mean = features.mean(dim=(2, 3), keepdim=True)
        else:
            seen = (~padding)[:, None].to(features.dtype)  # (B, 1, h, w)
            mean = (features * seen).sum(dim=(2, 3), keepdim=True) / seen.sum(dim=(2, 3), keepdim=True).clamp(min=1)
        return self.norm(self.convolution(mean)).relu().expand(-1, -1, *features.shape[2:])


class Pyramid(nn.Module):
    """Atrous spatial pyramid pooling, with torchvision's layers."""

    def __init__(self, in_channels: int, channels: int, rates: Sequence[int]) -> None:
        super().__init__()
        layers = ASPP(in_channels, list(rates), channels)
        self.branches = nn.ModuleList(list(layers.convs)[:-1])  # 1 x 1, and 3 x 3 at each rate
        self.pooling = ImagePooling(in_channels, channels)  # torchvision's would count padding
        self.project = layers.project[:3]  # without its dropout, which this line of methods does not have

    def forward(self, features: Tensor, padding: Tensor | None) -> Tensor:
        """(B, c, h, w) -> (B, channels, h, w)."""
        found = [branch(features) for branch in self.branches]
        out: Tensor = self.project(torch.cat([*found, self.pooling(features, padding)], dim=1))
        return out


class DeepLab(nn.Module):
    """Labels pixels: background and every class learned so far; grows by one classifier per task."""

    def __init__(self, backbone: Backbone, channels: int, rates: Sequence[int], tasks: Sequence[int]) -> None:
        super().__init__()
        self.backbone = backbone
        self.channels = channels
        self.taps = tap_stages(backbone)
        self.pyramid = Pyramid(backbone.channels[-1], channels, rates)
        self.classifiers = nn.ModuleList()
        for size in tasks:
            self.add_task(size)

    @property
    def tasks(self) -> tuple[int, ...]:
        """Classes of each task learned so far; the first classifier has the background, too."""
        first, *later = (classifier.out_channels for classifier in self.classifiers)
        return (int(first) - 1, *(int(size) for size in later))  # type: ignore[arg-type]

    def add_task(self, num_classes: int) -> None:
        """Grow by a task: a fresh classifier."""
        outputs = num_classes if len(self.classifiers) else 1 + num_classes
        self.classifiers.append(nn.Conv2d(self.channels, outputs, 1))

    def start_from_background(self, biases: bool = True) -> None:
        """Let the newest classes begin as shares of the background, so that no old probability moves (MiB).

        Every new class takes the background's weights, and b - log(N + 1) is the bias of the N new ones and of the
        background. Without `biases` those stay as they are.
        """
        first, newest = self.classifiers[0], self.classifiers[-1]
        assert isinstance(first, nn.Conv2d) and isinstance(newest, nn.Conv2d)
        assert first.bias is not None and newest.bias is not None
        with torch.no_grad():
            newest.weight.copy_(first.weight[:1].expand_as(newest.weight))
            if biases:
                shared = first.bias[0] - math.log(newest.out_channels + 1)
                newest.bias.fill_(0.0).add_(shared)
                first.bias[0] = shared

    def forward(self, images: Tensor, padding: Tensor | None = None) -> DeepLabOutput:
        """Images (B, 3, H, W) in 0..1 or uint8; `padding` (B, H, W) is true outside an image of a mixed batch."""
        features = self.backbone(images, padding)
        stages = self.taps.collect(features)
        body = features[-1]
        head = self.pyramid(body, None if padding is None else shrink(padding, body))
        return DeepLabOutput(stages, body, head, torch.cat([each(head) for each in self.classifiers], dim=1))

    @torch.no_grad()
    def segment(
        self,
        images: Tensor,
        padding: Tensor | None = None,
        sizes: Sequence[Size] | None = None,
        original_sizes: Sequence[Size] | None = None,
    ) -> list[Segmentation]:
        """The class of the largest logit of every pixel, and one segment per class; `sizes` as the protocol says."""
        logits = upcast(self(images, padding).logits)
        found = []
        for image, (frame, size) in zip(logits, frames_of(images, sizes, original_sizes), strict=True):
            confidence = image.new_empty(size)
            labels = torch.empty(size, dtype=torch.long, device=image.device)
            for rows, part in strips(image, size, frame):  # (1 + C, t, W)
                confidence[rows], labels[rows] = part.softmax(dim=0).max(dim=0)
            found.append(Segmentation.of_labels(labels, confidence))
        return found


def resize(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps (B, C, h, w) at another size, bilinearly and in full precision."""
    maps = upcast(maps)
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    if maps.device.type != "cpu":
        return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)
    # There products of matrices give the same in a third of the time, and their gradient in a tenth.
    rows, columns = (_shares(old, new, maps.dtype) for old, new in zip(maps.shape[-2:], size, strict=True))
    with torch.autocast("cpu", enabled=False):
        return rows @ (maps @ columns.t())


@lru_cache(maxsize=64)
def _shares(old: int, new: int, dtype: torch.dtype) -> Tensor:
    """Weights that are kept: made while predicting, they must do for a gradient later."""
    with torch.inference_mode(False):
        return linear_weights(old, new, dtype)


def shrink(mask: Tensor, like: Tensor) -> Tensor:
    """A mask (B, H, W) at the size of a map (B, c, h, w): its nearest values."""
    return F.interpolate(mask[:, None].float(), size=like.shape[-2:], mode="nearest")[:, 0] > 0.5
