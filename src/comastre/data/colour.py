"""The SSD colour jitter of torchvision, worked out on float planes in one go.

torchvision rounds to bytes after each part and goes through HSV for the hue, which made colours two thirds of the
time of a training image (benchmarks/loader_speed.py).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision import tv_tensors  # type: ignore[import-untyped]
from torchvision.transforms import v2  # type: ignore[import-untyped]

_distort = v2.RandomPhotometricDistort()


def distort(image: Tensor) -> Tensor:
    """Random brightness, contrast, saturation, hue and channel order of an image (3, H, W) uint8.

    What is drawn, and the order of the parts, are those of `torchvision.transforms.v2.RandomPhotometricDistort`.
    """
    chosen = _distort.make_params([tv_tensors.Image(image)])
    brightness, contrast = chosen["brightness_factor"], chosen["contrast_factor"]
    saturation, hue = chosen["saturation_factor"], chosen["hue_factor"]
    if not (brightness is contrast is saturation is hue is None):
        planes = image.contiguous().float()  # (3, H, W), changed in place from here on
        if brightness is not None:
            planes.mul_(brightness).clamp_(0, 255).floor_()
        if contrast is not None and chosen["contrast_before"]:
            _blend(planes, _grey(planes).mean(), contrast)
        if saturation is not None:
            _blend(planes, _grey(planes), saturation)
        if hue is not None:
            planes = turn_hue(planes, hue)
        if contrast is not None and not chosen["contrast_before"]:
            _blend(planes, _grey(planes).mean(), contrast)
        image = planes.to(torch.uint8)
    order = chosen["channel_permutation"]
    return image if order is None else image[order]


def _grey(planes: Tensor) -> Tensor:
    """The luma (H, W) of ITU-R BT.601, in whole steps, as torchvision's grey."""
    grey = planes[0] * 0.2989
    return grey.add_(planes[1], alpha=0.587).add_(planes[2], alpha=0.114).floor_()


def _blend(planes: Tensor, other: Tensor, share: float) -> None:
    planes.mul_(share).add_(other, alpha=1 - share).clamp_(0, 255).floor_()


def turn_hue(planes: Tensor, turn: float) -> Tensor:
    """Turn the hue of an image (3, H, W) of whole float values by a share of the colour circle.

    A turn keeps the largest and the smallest value of a pixel and only changes which channels have them, so that
    neither saturation nor value is needed.
    """
    red, green, blue = planes.unbind(0)  # (H, W) each
    largest = torch.maximum(torch.maximum(red, green), blue)
    smallest = torch.minimum(torch.minimum(red, green), blue)
    spread = largest - smallest
    # The hue in sixths of the circle times the spread: 0 red, 2 green, 4 blue. Grey has no hue, and any will do.
    hue = torch.where(
        largest == red,
        green - blue,
        torch.where(largest == green, torch.add(blue - red, spread, alpha=2), torch.add(red - green, spread, alpha=4)),
    )
    hue.div_(spread.clamp(min=1)).add_(6 * turn)
    hue.sub_(torch.floor(hue / 6).mul_(6))  # 0..6
    turned = torch.stack([hue - 3, hue - 2, hue - 4]).abs_()  # how far from cyan, green and blue
    turned[0].sub_(1)
    turned[1:].neg_().add_(2)
    return turned.clamp_(0, 1).mul_(spread).add_(smallest).round_()
