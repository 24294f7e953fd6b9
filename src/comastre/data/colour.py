"""The SSD colour jitter as Mask2Former has it (docs/specification.md, Augmentation), on float planes in one go.

Saturation and hue are those of HSV, but worked out without going there and back through bytes, which takes most of the
time of a training image (benchmarks/loader_speed.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BRIGHTNESS = 32.0
"""Added to all channels of 0..255, at most."""
CONTRAST = (0.5, 1.5)
"""Factor of all channels."""
SATURATION = (0.5, 1.5)
"""Factor of HSV's saturation."""
HUE = 18
"""Turn of HSV's hue in 180ths of the circle, at most; whole numbers are drawn."""


@dataclass(frozen=True)
class ColourChange:
    """What is done to one image; None for a part that is left out."""

    brightness: float | None
    contrast: float | None
    saturation: float | None
    hue: int | None
    contrast_first: bool
    """Before saturation and hue, or after them."""


def draw_change() -> ColourChange:
    """Each part with probability 1/2, and a coin for the place of contrast."""
    # Always all nine, so that one part's coin leaves what the others draw as it is.
    values = torch.rand(9).tolist()
    coins, amounts = [value < 0.5 for value in values[:5]], values[5:]
    return ColourChange(
        brightness=BRIGHTNESS * (2 * amounts[0] - 1) if coins[0] else None,
        contrast=_between(CONTRAST, amounts[1]) if coins[1] else None,
        saturation=_between(SATURATION, amounts[2]) if coins[2] else None,
        hue=int(amounts[3] * (2 * HUE + 1)) - HUE if coins[3] else None,
        contrast_first=coins[4],
    )


def _between(bounds: tuple[float, float], where: float) -> float:
    return bounds[0] + where * (bounds[1] - bounds[0])


def distort(image: Tensor) -> Tensor:
    """Random brightness, contrast, saturation and hue of an image (3, H, W) uint8."""
    return changed(image, draw_change())


def changed(image: Tensor, change: ColourChange) -> Tensor:
    """An image (3, H, W) uint8 after a change; as there, every part ends in whole values."""
    parts = (change.brightness, change.contrast, change.saturation, change.hue)
    if all(part is None for part in parts):
        return image
    planes = image.contiguous().float()  # (3, H, W), changed in place from here on
    if change.brightness is not None:
        planes.add_(change.brightness).clamp_(0, 255).floor_()
    if change.contrast is not None and change.contrast_first:
        planes.mul_(change.contrast).clamp_(0, 255).floor_()
    if change.saturation is not None:
        saturate(planes, change.saturation)
    if change.hue is not None:
        planes = turn_hue(planes, change.hue / 180)
    if change.contrast is not None and not change.contrast_first:
        planes.mul_(change.contrast).clamp_(0, 255).floor_()
    return planes.to(torch.uint8)


def saturate(planes: Tensor, factor: float) -> None:
    """Multiply HSV's saturation of an image (3, H, W), in place: a pixel's largest channel stays, the others move."""
    largest, smallest = planes.amax(dim=0), planes.amin(dim=0)  # (H, W)
    # A saturation above 1 is cut: the smallest channel is then 0.
    factors = (largest / (largest - smallest).clamp_(min=1)).clamp_(max=factor) if factor > 1 else factor
    planes.sub_(largest).mul_(factors).add_(largest).round_()


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
