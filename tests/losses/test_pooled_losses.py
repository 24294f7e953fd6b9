"""Local POD and pooled cubes: hand-computed values, loops over windows, and padding that never counts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from comastre.losses.pod import fold_logits, growth, pod_distance, pooled, without_padding
from comastre.losses.pooled_cube import channel_cube, spatial_cube

NEW = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=torch.float64)
OLD = torch.tensor([[[[1.0, 2.0], [3.0, 3.0]]]], dtype=torch.float64)


def test_local_pod_by_hand():
    assert sorted(pooled(NEW.square(), [1])[0].tolist()) == [2.5, 5.0, 10.0, 12.5]
    assert sorted(pooled(OLD.square(), [1])[0].tolist()) == [2.5, 5.0, 6.5, 9.0]
    assert pod_distance(NEW, OLD, [1], squared=True).item() == pytest.approx(4.949747, abs=5e-7)
    assert pod_distance(NEW, OLD, [1, 2], squared=True).item() == pytest.approx(11.067972, abs=2e-6)


def test_growth_and_folded_logits_by_hand():
    assert growth(17, 1) == pytest.approx(4.123106, abs=5e-7)
    assert growth(21, 5) == pytest.approx(2.049390, abs=5e-7)
    assert fold_logits(torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1), 2).flatten().tolist() == [4.0, 2.0]


@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (3, 3)])
def test_local_pod_against_a_loop_over_windows(shape):
    maps = torch.rand(2, 3, *shape)
    expected = []
    for scale in (1, 2, 4):
        rows, columns = shape[0] // scale, shape[1] // scale
        for top in range(scale):
            for left in range(scale):
                window = maps[:, :, top * rows : (top + 1) * rows, left * columns : (left + 1) * columns]
                if window.numel():
                    expected += [window.mean(dim=3).flatten(1), window.mean(dim=2).flatten(1)]
    found = pooled(maps, (1, 2, 4))
    torch.testing.assert_close(found.sort(dim=1).values, torch.cat(expected, dim=1).sort(dim=1).values)


def test_the_distance_of_an_image_does_not_depend_on_the_others():
    new, old = torch.rand(3, 4, 8, 8), torch.rand(3, 4, 8, 8)
    for distance in (pod_distance, lambda one, other: channel_cube(one, other, 3)):
        alone = torch.cat([distance(new[i : i + 1], old[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(distance(new, old), alone)


def test_spatial_cubes_are_pooled_squares():
    new, old = torch.rand(2, 3, 8, 6), torch.rand(2, 3, 8, 6)
    expected = []
    for kernel in (4, 24):
        means = [F.avg_pool2d(each**2, kernel, stride=1, padding=kernel // 2) for each in (new, old)]
        expected.append((means[0] - means[1]).flatten(1).norm(dim=1))
    torch.testing.assert_close(spatial_cube(new, old, (4, 24)), torch.stack(expected).mean(dim=0))


def test_channel_cubes_against_a_loop():
    new, old = torch.rand(1, 5, 2, 3), torch.rand(1, 5, 2, 3)
    difference = F.pad(new**2 - old**2, (0, 0, 0, 0, 1, 1))  # one channel of zeros at both ends
    means = [difference[:, channel : channel + 3].mean(dim=1) for channel in range(5)]
    torch.testing.assert_close(channel_cube(new, old, 3)[0], torch.stack(means).norm())


def test_equal_maps_have_a_gradient_of_zero_and_padding_is_zero():
    new = torch.rand(2, 3, 8, 8, requires_grad=True)
    for distance in (
        lambda one, other: pod_distance(one, other, squared=True),
        lambda one, other: spatial_cube(one, other, (4,)),
        lambda one, other: channel_cube(one, other, 3),
    ):
        (gradient,) = torch.autograd.grad(distance(new, new.detach()).sum(), new)
        assert torch.equal(gradient, torch.zeros_like(gradient))
    padding = torch.zeros(2, 8, 8, dtype=torch.bool)
    padding[1, 5:] = True
    blank = without_padding(new, padding)
    assert not blank[1, :, 5:].any() and torch.equal(blank[0], new[0]) and torch.equal(blank[1, :, :5], new[1, :, :5])
