"""Points: bilinear values, uncertainty, and draws that do not depend on how a batch is split."""

import pytest
import torch

from comastre.config.sections import MaskLossConfig
from comastre.losses.points import PointCounts, PointSource, sample_at, sample_each, uncertain_points


def test_sample_at_reads_pixel_centres_midpoints_and_zero_outside():
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    # (x, y): centre of the top right pixel, middle of the map, the corner (a quarter inside, the rest is zero padding).
    points = torch.tensor([[[0.75, 0.25], [0.5, 0.5], [0.0, 0.0]]])
    torch.testing.assert_close(sample_at(maps, points), torch.tensor([[[2.0, 2.5, 0.25]]]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_hard_masks_are_interpolated_as_numbers(dtype):
    maps = torch.tensor([[[[1, 0], [1, 0]]]], dtype=dtype)
    assert sample_at(maps, torch.tensor([[[0.5, 0.5], [0.25, 0.25]]])).tolist() == [[[0.5, 1.0]]]


def test_sample_each_equals_sample_at_per_map():
    maps, points = torch.randn(2, 3, 5, 7), torch.rand(2, 3, 11, 2)
    expected = torch.stack([sample_at(maps[:, g : g + 1], points[:, g])[:, 0] for g in range(3)], dim=1)
    torch.testing.assert_close(sample_each(maps, points), expected)


def test_sampling_has_exact_gradients():
    maps, points = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True), torch.rand(1, 2, 5, 2)
    assert torch.autograd.gradcheck(lambda values: sample_each(values, points.double()), maps)
    assert torch.autograd.gradcheck(lambda values: sample_at(values, points[:, 0].double()), maps)


def test_half_precision_maps_are_sampled_in_single_precision():
    maps, points = torch.randn(1, 2, 4, 4).bfloat16(), torch.rand(1, 6, 2)
    assert sample_at(maps, points).dtype == torch.float32
    torch.testing.assert_close(sample_at(maps, points), sample_at(maps.float(), points))


def test_uncertain_points_are_the_candidates_with_the_smallest_logits_then_the_uniform_ones():
    torch.manual_seed(0)
    logits, candidates, uniform = torch.randn(2, 3, 8, 8), torch.rand(2, 30, 2), torch.rand(2, 4, 2)
    points = uncertain_points(logits.requires_grad_(), candidates, uniform, 6)
    assert points.shape == (2, 3, 10, 2) and not points.requires_grad
    certainty = sample_at(logits, candidates).abs()
    for image in range(2):
        for mask in range(3):
            smallest = certainty[image, mask].argsort()[:6]
            expected = {tuple(point) for point in candidates[image, smallest].tolist()}
            assert {tuple(point) for point in points[image, mask, :6].tolist()} == expected
            assert torch.equal(points[image, mask, 6:], uniform[image])


@pytest.mark.parametrize(
    ("importance", "expected"), [(0.75, (37632, 9408, 3136)), (0.0, (0, 0, 12544)), (1.0, (37632, 12544, 0))]
)
def test_point_counts_are_the_papers(importance, expected):
    counts = PointCounts.of(MaskLossConfig(importance=importance))
    assert (counts.candidates, counts.important, counts.uniform) == expected
    logits = torch.randn(1, 2, 4, 4)
    points = uncertain_points(
        logits, torch.rand(1, counts.candidates, 2), torch.rand(1, counts.uniform, 2), counts.important
    )
    assert points.shape == (1, 2, 12544, 2)


def _draws(rows, seed=3, iteration=7):
    source = PointSource(seed, iteration, rows, 4, "cpu")
    return [source.draw(5), source.draw(9), source.draw(0)]


def test_the_points_of_an_image_do_not_depend_on_how_the_batch_is_split():
    whole = _draws(slice(0, 4))
    first, second = _draws(slice(0, 2)), _draws(slice(2, 4))
    for together, left, right in zip(whole, first, second, strict=True):
        assert torch.equal(together, torch.cat([left, right]))
    assert whole[0].shape == (4, 5, 2) and whole[2].shape == (4, 0, 2)


def test_draws_differ_over_calls_images_iterations_and_seeds():
    source = PointSource(0, 1, slice(0, 2), 2, "cpu")
    first, second = source.draw(6), source.draw(6)
    others = [PointSource(0, 2, slice(0, 2), 2, "cpu").draw(6), PointSource(1, 0, slice(0, 2), 2, "cpu").draw(6)]
    others += [PointSource(-1, 1, slice(0, 2), 2, "cpu").draw(6), second, first.flip(0)]
    assert not any(torch.equal(first, other) for other in others)
    assert first.min() >= 0 and first.max() < 1
