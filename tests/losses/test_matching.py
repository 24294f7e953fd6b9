"""Matching: against brute force, Mask2Former's costs, and what happens at the edges."""

from itertools import permutations

import numpy as np
import pytest
import torch

from comastre.config.sections import MatchingConfig
from comastre.data.targets import Targets
from comastre.errors import UserError
from comastre.losses.matching import NonFiniteCost, assign, matching_costs
from comastre.losses.points import sample_at
from comastre.nets.outputs import Proposals


def make_targets(counts, size=16):
    masks = [torch.rand(count, size, size) > 0.5 for count in counts]
    labels = [torch.arange(count) for count in counts]
    return Targets.stack(masks, labels, [f"image-{index}" for index in range(len(counts))])


def make_layers(num_layers, num_images, num_queries, size=8):
    return tuple(
        Proposals(
            torch.randn(num_images, num_queries, 4),
            2 * torch.randn(num_images, num_queries, size, size),
            torch.randn(num_images, num_queries),
        )
        for _ in range(num_layers)
    )


def brute_force(cost):
    """Smallest total over all injective assignments of the shorter axis."""
    cost = cost if cost.shape[0] >= cost.shape[1] else cost.T
    rows, columns = cost.shape
    return min(sum(cost[row, column] for column, row in enumerate(pick)) for pick in permutations(range(rows), columns))


@pytest.mark.parametrize("num_queries", [1, 2, 4, 6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_assignment_is_the_cheapest_of_all_permutations(num_queries, seed):
    torch.manual_seed(seed)
    counts = (num_queries, 0, 1, 5)  # 5 is more than the queries in all cases but the last
    targets, costs = make_targets(counts), torch.randn(2, 4, num_queries, max(counts))
    assignment = assign(costs, targets)
    for layer in range(2):
        for image, count in enumerate(counts):
            valid = assignment.valid[layer, image]
            queries, masks = assignment.query[layer, image][valid], valid.nonzero()[:, 0]
            assert len(queries) == len(set(queries.tolist())) == min(num_queries, count)
            assert not valid[count:].any()
            total = costs[layer, image, queries, masks].sum().item()
            assert total == pytest.approx(brute_force(costs[layer, image, :, :count].numpy()), abs=1e-5)


def test_costs_equal_mask2formers():
    reference = pytest.importorskip("transformers.models.mask2former.modeling_mask2former")
    torch.manual_seed(0)
    layers, targets, points = make_layers(2, 2, 5), make_targets((3, 2)), torch.rand(2, 200, 2)
    costs = matching_costs(layers, targets, points, MatchingConfig(bce=5.0, dice=3.0))
    assert costs.shape == (2, 2, 5, 3)
    for index, layer in enumerate(layers):
        for image, count in enumerate(targets.counts):
            logits = sample_at(layer.mask_logits, points)[image]
            truth = sample_at(targets.masks, points)[image, :count]
            bce = reference.pair_wise_sigmoid_cross_entropy_loss(logits, truth)
            dice = reference.pair_wise_dice_loss(logits, truth)
            torch.testing.assert_close(costs[index, image, :, :count], 5 * bce + 3 * dice)


def test_objectness_lowers_the_cost_of_sure_queries():
    layers, targets, points = make_layers(1, 2, 4), make_targets((2, 1)), torch.rand(2, 50, 2)
    without = matching_costs(layers, targets, points, MatchingConfig())
    with_objectness = matching_costs(layers, targets, points, MatchingConfig(objectness_cost=2.0))
    expected = 2 * layers[0].objectness_logits.sigmoid()[None, :, :, None].expand_as(without)
    torch.testing.assert_close(without - with_objectness, expected)


def test_perfect_masks_find_their_ground_truth():
    targets = make_targets((3,))
    order = torch.tensor([2, 0, 3, 1])  # query q predicts mask order[q]; 3 is nobody's
    predicted = torch.cat([targets.masks[0], ~targets.masks[0, :1]])[order]
    layer = Proposals(torch.zeros(1, 4, 4), 20 * predicted[None].float() - 10, torch.zeros(1, 4))
    assignment = assign(matching_costs([layer], targets, torch.rand(1, 300, 2), MatchingConfig()), targets)
    assert assignment.query.tolist() == [[[1, 3, 0]]]
    assert assignment.matched.tolist() == [[[True, True, False, True]]]


def test_permuting_queries_permutes_the_assignment():
    torch.manual_seed(1)
    targets, costs, order = make_targets((3, 4)), torch.randn(2, 2, 6, 4), torch.randperm(6)
    plain, permuted = assign(costs, targets), assign(costs[:, :, order], targets)
    assert torch.equal(plain.valid, permuted.valid)
    assert torch.equal(plain.query[plain.valid], order[permuted.query][plain.valid])
    assert torch.equal(plain.matched[:, :, order], permuted.matched)


@pytest.mark.parametrize("counts", [(0, 0), (2, 0), (7, 3)])
def test_matched_and_unmatched_partition_the_queries(counts):
    targets = make_targets(counts)
    assignment = assign(torch.randn(3, 2, 4, max(counts)), targets)
    matched = assignment.matched
    assert matched.shape == (3, 2, 4) and torch.equal(matched, assignment.matched_on_host)
    for layer in range(3):
        for image, count in enumerate(counts):
            chosen = set(assignment.query[layer, image][assignment.valid[layer, image]].tolist())
            assert set(matched[layer, image].nonzero()[:, 0].tolist()) == chosen
            assert (~matched)[layer, image].sum() == 4 - min(4, count)


def test_identical_masks_get_different_queries():
    targets = make_targets((3,))
    assignment = assign(torch.ones(1, 1, 5, 3), targets)
    assert assignment.valid.all() and len(set(assignment.query.flatten().tolist())) == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_cost_that_is_no_number_names_the_image_and_the_layer(bad):
    targets, costs = make_targets((1, 2)), torch.randn(2, 2, 3, 2)
    costs[:, 0, :, 1] = bad  # padding of the first image: nobody looks
    assign(costs, targets)
    costs[1, 1, 0, 1] = bad
    assert issubclass(NonFiniteCost, UserError)  # a sentence for the user, whose learning rate it is
    with pytest.raises(NonFiniteCost, match="image 'image-1' at decoder prediction 1 of 2"):
        assign(costs, targets)


def test_there_is_one_copy_to_the_host_and_one_back(monkeypatch):
    targets, costs, old_objectness = make_targets((3, 2)), torch.randn(4, 2, 5, 3), torch.randn(2, 5)
    copies = {"cpu": 0, "back": 0}
    to_host, move = torch.Tensor.cpu, torch.Tensor.to

    def count_cpu(self, *args, **kwargs):
        copies["cpu"] += 1
        return to_host(self, *args, **kwargs)

    def count_to(self, *args, **kwargs):
        copies["back"] += isinstance(args[0], torch.device)
        return move(self, *args, **kwargs)

    def refuse(self, *args, **kwargs):
        raise AssertionError("reads a device tensor on the host")

    monkeypatch.setattr(torch.Tensor, "cpu", count_cpu)
    monkeypatch.setattr(torch.Tensor, "to", count_to)
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    assignment = assign(costs, targets, old_objectness)
    _ = assignment.matched
    monkeypatch.undo()
    assert copies == {"cpu": 1, "back": 1}
    assert torch.equal(assignment.extra, old_objectness)


def test_costs_do_not_lose_precision_under_autocast_and_have_no_gradient():
    torch.manual_seed(0)
    layers, targets, points = make_layers(2, 1, 6), make_targets((4,)), torch.rand(1, 100, 2)
    layers[0].mask_logits.requires_grad_()
    config = MatchingConfig(objectness_cost=2.0)
    exact = matching_costs(layers, targets, points, config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = matching_costs(layers, targets, points, config)
    assert torch.equal(exact, autocast) and not exact.requires_grad
    halves = [
        Proposals(layer.embeddings, layer.mask_logits.bfloat16(), layer.objectness_logits.bfloat16())
        for layer in layers
    ]
    torch.testing.assert_close(matching_costs(halves, targets, points, config), exact, atol=0.05, rtol=0.01)


def test_a_batch_without_any_mask_is_assigned():
    layers, targets = make_layers(2, 3, 4), make_targets((0, 0, 0))
    assignment = assign(matching_costs(layers, targets, torch.rand(3, 10, 2), MatchingConfig()), targets)
    assert assignment.query.shape == (2, 3, 0) and not assignment.matched.any()
    assert np.array_equal(assignment.matched.shape, (2, 3, 4))
