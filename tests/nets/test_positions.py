"""Sine positions are what the formula says, and padding does not move them."""

import math

import pytest
import torch

from comastre.nets.positions import sine_positions

CPU = torch.device("cpu")


def slow_positions(height: int, width: int, dim: int) -> torch.Tensor:
    """(height * width, dim), one number at a time."""
    half = dim // 2
    result = torch.zeros(height * width, dim)
    for row in range(height):
        for column in range(width):
            for place, (number, length) in enumerate(((row + 1, height), (column + 1, width))):
                turn = number / (length + 1e-6) * 2 * math.pi
                for channel in range(half):
                    angle = turn / 10000 ** (2 * (channel // 2) / half)
                    value = math.sin(angle) if channel % 2 == 0 else math.cos(angle)
                    result[row * width + column, place * half + channel] = value
    return result


@pytest.mark.parametrize(("size", "dim"), [((1, 1), 4), ((3, 5), 8), ((7, 2), 64)])
def test_positions_equal_a_slow_loop(size: tuple[int, int], dim: int) -> None:
    torch.testing.assert_close(sine_positions(size, dim, CPU)[0], slow_positions(*size, dim), atol=2e-6, rtol=0)


def test_no_padding_is_the_same_as_an_empty_padding_mask() -> None:
    empty = torch.zeros(2, 4, 6, dtype=torch.bool)
    masked = sine_positions((4, 6), 16, CPU, empty)
    assert masked.shape == (2, 24, 16)
    assert torch.equal(masked, sine_positions((4, 6), 16, CPU).expand(2, -1, -1))


def test_a_padded_image_gets_the_positions_it_has_alone() -> None:
    sizes = [(3, 5), (4, 2), (1, 1), (4, 6)]
    padding = torch.ones(len(sizes), 4, 6, dtype=torch.bool)
    for image, (height, width) in enumerate(sizes):
        padding[image, :height, :width] = False
    padded = sine_positions((4, 6), 16, CPU, padding).unflatten(1, (4, 6))
    for image, (height, width) in enumerate(sizes):
        alone = sine_positions((height, width), 16, CPU)[0].unflatten(0, (height, width))
        assert torch.equal(padded[image, :height, :width], alone)
    assert padded.isfinite().all()
