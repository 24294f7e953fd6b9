"""Mask losses: hand-computed numbers, Mask2Former's functions, gradients, deep supervision and empty batches."""

import math

import pytest
import torch

from comastre.config.sections import MaskLossConfig
from comastre.data.targets import Targets
from comastre.losses.masks import average_num_masks, mask_bce, mask_dice, matched_mask_losses
from comastre.losses.matching import assign
from comastre.losses.points import PointCounts, sample_each, uncertain_points
from comastre.nets.outputs import Proposals, take_queries

CONFIG = MaskLossConfig(points=40)


def make_batch(counts, num_layers=2, num_queries=4, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    num_images = len(counts)
    masks = [torch.rand(count, 16, 16, generator=generator) > 0.5 for count in counts]
    targets = Targets.stack(masks, [torch.zeros(count, dtype=torch.long) for count in counts], ["image"] * num_images)
    logits = torch.randn(num_layers, num_images, num_queries, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
    costs = torch.randn(num_layers, num_images, num_queries, max(counts), generator=generator)
    kinds = PointCounts.of(CONFIG)
    candidates = torch.rand(num_images, kinds.candidates, 2, generator=generator)
    uniform = torch.rand(num_images, kinds.uniform, 2, generator=generator)
    return logits.requires_grad_(), targets, assign(costs, targets), candidates, uniform


def as_layers(logits):
    return [Proposals(torch.zeros(1), layer, torch.zeros(1)) for layer in logits]


def test_bce_and_dice_by_hand():
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]]])  # probabilities 1/2, 3/4 | 1/2, 1/2
    truth = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
    first_bce = (math.log(2) + math.log(4)) / 2
    both = torch.tensor([[True, True]])
    assert mask_bce(logits, truth, both, 2.0).item() == pytest.approx((first_bce + math.log(2)) / 2)
    first_dice = 1 - (2 * 0.5 + 1) / (1.25 + 1 + 1)
    second_dice = 1 - (2 * 1.0 + 1) / (1 + 2 + 1)
    assert mask_dice(logits, truth, both, 2.0).item() == pytest.approx((first_dice + second_dice) / 2)
    only_first = torch.tensor([[True, False]])
    assert mask_bce(logits, truth, only_first, 4.0).item() == pytest.approx(first_bce / 4)
    assert mask_dice(logits, truth, only_first, 4.0).item() == pytest.approx(first_dice / 4)


def test_bce_and_dice_equal_mask2formers():
    reference = pytest.importorskip("transformers.models.mask2former.modeling_mask2former")
    logits, truth, valid = torch.randn(2, 3, 50), torch.rand(2, 3, 50), torch.ones(2, 3, dtype=torch.bool)
    flat = (logits.flatten(0, 1), truth.flatten(0, 1), 5)
    torch.testing.assert_close(mask_bce(logits, truth, valid, 5.0), reference.sigmoid_cross_entropy_loss(*flat))
    torch.testing.assert_close(mask_dice(logits, truth, valid, 5.0), reference.dice_loss(*flat))


def test_gradients_are_exact():
    logits = torch.randn(1, 2, 6, dtype=torch.float64, requires_grad=True)
    truth, weights = torch.rand(1, 2, 6, dtype=torch.float64), torch.tensor([[0.3, 1.0]])
    assert torch.autograd.gradcheck(lambda values: mask_bce(values, truth, weights, 1.5), logits)
    assert torch.autograd.gradcheck(lambda values: mask_dice(values, truth, weights, 1.5), logits)
    stack, *rest = make_batch((2, 1), dtype=torch.float64)
    whole = torch.autograd.gradcheck(
        lambda values: matched_mask_losses(as_layers(values), *rest, CONFIG, 3.0), stack, fast_mode=True
    )
    assert whole


def test_take_queries_picks_rows():
    values = torch.arange(12.0).reshape(2, 3, 2)
    assert take_queries(values, torch.tensor([[2, 0], [1, 1]])).tolist() == [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]


def test_all_layers_at_once_equal_a_loop_over_layers_images_and_masks():
    logits, targets, assignment, candidates, uniform = make_batch((3, 0, 6))  # 6 masks, 4 queries
    bce, dice = matched_mask_losses(as_layers(logits), targets, assignment, candidates, uniform, CONFIG, 9.0)
    expected_bce = expected_dice = torch.zeros(())
    pairs = 0
    for layer, image, mask in assignment.valid.nonzero().tolist():
        query = assignment.query[layer, image, mask]
        one = logits[layer, image, query][None, None]
        points = uncertain_points(one, candidates[image][None], uniform[image][None], PointCounts.of(CONFIG).important)
        predicted = sample_each(one, points)
        truth = sample_each(targets.masks[image, mask][None, None], points)
        expected_bce = expected_bce + mask_bce(predicted, truth, torch.ones(1, 1), 9.0)
        expected_dice = expected_dice + mask_dice(predicted, truth, torch.ones(1, 1), 9.0)
        pairs += 1
    assert pairs == 2 * (3 + 0 + 4)
    torch.testing.assert_close(bce, expected_bce)
    torch.testing.assert_close(dice, expected_dice)


def test_deep_supervision_sums_the_layers():
    logits, targets, assignment, candidates, uniform = make_batch((2, 2), num_layers=1)
    twice = assign(torch.zeros(2, 2, 4, 2), targets)
    same = type(assignment)(assignment.query.repeat(2, 1, 1), assignment.valid.repeat(2, 1, 1), 4, twice.host_query)
    one = matched_mask_losses(as_layers(logits), targets, assignment, candidates, uniform, CONFIG, 4.0)
    two = matched_mask_losses(as_layers(logits) * 2, targets, same, candidates, uniform, CONFIG, 4.0)
    torch.testing.assert_close(torch.stack(two), 2 * torch.stack(one))


@pytest.mark.parametrize("num_images", [1, 3])
def test_a_batch_without_masks_gives_an_exact_zero_with_a_graph(num_images):
    logits, *rest = make_batch((0,) * num_images)
    for loss in matched_mask_losses(as_layers(logits), *rest, CONFIG, average_num_masks(0, "cpu")):
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert loss.item() == 0 and not gradient.any()


def test_only_matched_masks_get_a_gradient():
    logits, targets, assignment, candidates, uniform = make_batch((1, 2))
    sum(matched_mask_losses(as_layers(logits), targets, assignment, candidates, uniform, CONFIG, 3.0)).backward()
    assert torch.equal(logits.grad.abs().sum((-1, -2)) > 0, assignment.matched)


def test_half_precision_is_finite_and_close():
    logits, *rest = make_batch((2, 3))
    exact = torch.stack(matched_mask_losses(as_layers(logits), *rest, CONFIG, 5.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = torch.stack(matched_mask_losses(as_layers(logits.bfloat16()), *rest, CONFIG, 5.0))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, atol=0.0, rtol=0.03)
    extreme = torch.full_like(logits, 1e4).bfloat16()
    assert all(loss.isfinite() for loss in matched_mask_losses(as_layers(extreme), *rest, CONFIG, 5.0))


def test_the_number_of_masks_is_at_least_one():
    assert average_num_masks(0, "cpu").item() == 1 and average_num_masks(7, "cpu").item() == 7
