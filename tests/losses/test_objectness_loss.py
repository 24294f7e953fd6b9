"""Objectness loss: hand-computed, torch's weighted cross-entropy, gradients, accumulation and empty cases."""

import math

import pytest
import torch
import torch.nn.functional as F

from comastre.losses.objectness import objectness_loss, objectness_normaliser


def test_by_hand():
    logits = torch.tensor([[[math.log(3.0), math.log(3.0), 0.0]]])  # probabilities 3/4, 3/4, 1/2
    matched = torch.tensor([[[True, False, False]]])
    expected = (math.log(4 / 3) + 0.1 * math.log(4) + 0.1 * math.log(2)) / 1.2
    assert objectness_loss(logits, matched, 0.1).item() == pytest.approx(expected)


def test_each_layer_is_torchs_weighted_cross_entropy_and_layers_add_up():
    logits, matched = torch.randn(3, 2, 5), torch.rand(3, 2, 5) > 0.6
    expected = torch.zeros(())
    for layer in range(3):
        # Classes "object" (logit x) and "no object" (logit 0), as Mask2Former weighs them.
        pairs = torch.stack([logits[layer], torch.zeros(2, 5)], dim=-1).flatten(0, 1)
        expected = expected + F.cross_entropy(pairs, (~matched[layer]).long().flatten(), torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(objectness_loss(logits, matched, 0.1), expected)


def test_gradient_is_exact():
    logits = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    matched = torch.rand(2, 2, 3) > 0.5
    assert torch.autograd.gradcheck(lambda values: objectness_loss(values, matched, 0.1), logits)


def test_the_normaliser_is_known_from_the_counts_and_makes_parts_add_up_to_the_whole():
    logits, counts = torch.randn(2, 4, 3), (1, 0, 5, 2)  # 5 masks, only 3 queries
    matched = torch.zeros(2, 4, 3, dtype=torch.bool)
    for image, count in enumerate(counts):
        matched[:, image, :count] = True
    whole = objectness_loss(logits, matched, 0.1)
    normaliser = objectness_normaliser(counts, 3, 0.1)
    assert normaliser == pytest.approx(torch.where(matched[0], 1.0, 0.1).sum().item())
    parts = [objectness_loss(logits[:, rows], matched[:, rows], 0.1, normaliser / 2) for rows in ([0, 1], [2, 3])]
    torch.testing.assert_close(sum(parts) / 2, whole)


def test_nothing_matched_trains_and_weight_zero_gives_an_exact_zero():
    logits = torch.randn(2, 2, 3, requires_grad=True)
    nobody = torch.zeros(2, 2, 3, dtype=torch.bool)
    torch.testing.assert_close(objectness_loss(logits, nobody, 0.1), F.softplus(logits).mean((1, 2)).sum())
    zero = objectness_loss(logits, nobody, 0.0)
    zero.backward()
    assert zero.item() == 0 and not logits.grad.any()


def test_half_precision_is_finite_and_close():
    logits, matched = torch.randn(2, 2, 5), torch.rand(2, 2, 5) > 0.5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = objectness_loss(logits.bfloat16(), matched, 0.1)
    torch.testing.assert_close(half, objectness_loss(logits, matched, 0.1), atol=0.0, rtol=0.02)
    assert objectness_loss(torch.full((1, 1, 2), -1e4).bfloat16(), torch.tensor([[[True, False]]]), 0.1).isfinite()
