"""The colour jitter is Mask2Former's: what is drawn, in which order, and what each part does to a pixel."""

import colorsys
import math
from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from comastre.data.colour import ColourChange, changed, distort, draw_change, saturate, turn_hue
from comastre.data.transforms import seeded

NOTHING = ColourChange(None, None, None, None, contrast_first=True)


def random_image(side: int = 64) -> Tensor:
    image = torch.randint(0, 256, (3, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    image[:, :8] = image[:1, :8]  # grey has no hue
    image[0, 8:16] = image[1, 8:16]
    image[:, 16] = 0
    image[:, 17] = 255
    return image


def draws(number: int) -> list[ColourChange]:
    with seeded(0):
        return [draw_change() for _ in range(number)]


# --- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "low", "high"), [("brightness", -32, 32), ("contrast", 0.5, 1.5), ("saturation", 0.5, 1.5)]
)
def test_a_factor_is_uniform_between_its_bounds_and_there_half_of_the_time(name: str, low: float, high: float) -> None:
    values = [getattr(each, name) for each in draws(8000)]
    there = np.sort([value for value in values if value is not None])
    assert len(there) / len(values) == pytest.approx(0.5, abs=0.02)
    assert low <= there[0] and there[-1] <= high
    # Kolmogorov and Smirnov: at this distance one of a thousand true samples is refused.
    share = np.arange(1, len(there) + 1) / len(there)
    assert np.abs(share - (there - low) / (high - low)).max() < 1.95 / math.sqrt(len(there))


def test_hue_is_any_of_37_whole_turns_alike() -> None:
    turns = Counter(each.hue for each in draws(20000))
    assert turns.pop(None) / 20000 == pytest.approx(0.5, abs=0.02)
    assert sorted(turns) == list(range(-18, 19))
    expected = sum(turns.values()) / 37
    assert sum((count - expected) ** 2 / expected for count in turns.values()) < 68  # chi-square of 36, 0.1 %


def test_the_five_coins_are_fair_and_know_nothing_of_each_other() -> None:
    faces = Counter((*(value is not None for value in astuple(each)[:4]), each.contrast_first) for each in draws(16000))
    assert len(faces) == 32
    assert sum((count - 500) ** 2 / 500 for count in faces.values()) < 62  # chi-square of 31, 0.1 %


def test_the_same_numbers_are_drawn_whatever_is_left_out() -> None:
    for seed in range(50):
        with seeded(seed):
            distort(random_image(24))
            after = torch.rand(1)
        with seeded(seed):
            torch.rand(9)
            assert torch.equal(torch.rand(1), after)


def test_channels_are_never_exchanged() -> None:
    """Brightness, contrast, saturation and 36 degrees of hue leave pure red the largest channel, and so for each."""
    for channel in range(3):
        image = torch.full((3, 4, 4), 60, dtype=torch.uint8)
        image[channel] = 180
        for seed in range(300):
            with seeded(seed):
                assert bool((distort(image).argmax(dim=0) == channel).all())


# --- what each part does ---------------------------------------------------------------------------------------------


def test_brightness_is_added_and_contrast_multiplied_down_to_whole_values() -> None:
    image = torch.tensor([0, 10, 100, 250], dtype=torch.uint8).expand(3, 1, 4)
    brighter = changed(image, ColourChange(20.5, None, None, None, True))
    darker = changed(image, ColourChange(-20.5, None, None, None, True))
    assert brighter[0].tolist() == [[20, 30, 120, 255]] and darker[0].tolist() == [[0, 0, 79, 229]]
    steeper = changed(image, ColourChange(None, 1.25, None, None, True))
    assert steeper[0].tolist() == [[0, 12, 125, 255]]
    assert torch.equal(changed(image, NOTHING), image)


def test_contrast_comes_before_saturation_and_hue_or_after_them() -> None:
    image = random_image()
    first = changed(image, ColourChange(8.0, 1.4, 1.3, 11, contrast_first=True))
    last = changed(image, ColourChange(8.0, 1.4, 1.3, 11, contrast_first=False))

    def step(now: Tensor, **part: float) -> Tensor:
        fields = {"brightness": None, "contrast": None, "saturation": None, "hue": None, "contrast_first": True}
        return changed(now, ColourChange(**{**fields, **part}))  # type: ignore[arg-type]

    brighter = step(image, brightness=8.0)
    assert torch.equal(first, step(step(step(brighter, contrast=1.4), saturation=1.3), hue=11))
    assert torch.equal(last, step(step(step(brighter, saturation=1.3), hue=11), contrast=1.4))
    assert not torch.equal(first, last)


@pytest.mark.parametrize(("factor", "turn"), [(0.5, 0), (0.8, 0), (1.5, 0), (1.0, 18), (1.0, -18), (1.0, 7), (1.0, 0)])
def test_saturation_and_hue_are_those_of_hsv_pixel_by_pixel(factor: float, turn: int) -> None:
    image = random_image(32)
    planes = image.float()
    if factor != 1.0:
        saturate(planes, factor)
    planes = turn_hue(planes, turn / 180)
    expected = torch.empty(3, 32, 32)
    for row in range(32):
        for column in range(32):
            hue, saturation, value = colorsys.rgb_to_hsv(*(image[:, row, column].double() / 255).tolist())
            pixel = colorsys.hsv_to_rgb((hue + turn / 180) % 1, min(1.0, saturation * factor), value)
            expected[:, row, column] = 255 * torch.tensor(pixel)
    assert (planes - expected).abs().max() <= 0.501  # rounded to whole values


@pytest.mark.parametrize("turn", [0.05, -0.05, 0.0, 0.37, -0.5])
def test_hue_is_that_of_torchvision(turn: float) -> None:
    image = random_image()
    difference = (turn_hue(image.float(), turn).int() - functional.adjust_hue(image, turn).int()).abs()
    assert difference.max() <= 1
    assert difference.float().mean() < 0.2
