"""Soft targets of a teacher on the same queries, against sums written out."""

import math

import pytest
import torch

from comastre.losses.taught import split_classes, taught_classes, taught_objectness


def test_no_object_is_apart_from_the_classes() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.25, 0.25]]))
    objectness, classes = split_classes(logits)
    torch.testing.assert_close(objectness, torch.tensor([0.4, 0.75]))
    torch.testing.assert_close(classes, torch.tensor([[0.25, 0.75], [2 / 3, 1 / 3]]))
    # What is surely nothing still has a distribution, not 0 / 0.
    objectness, classes = split_classes(torch.tensor([[1.0, 1.0, 500.0]]))
    assert objectness.tolist() == [0.0] and classes.tolist() == [[0.5, 0.5]]


def test_both_losses_equal_the_sums_written_out() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=generator)
    targets, weights = (torch.rand(*size, generator=generator) for size in ((2, 3, 4), (2, 3)))

    def cross_entropy(logit: float, target: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -target * math.log(p) - (1 - target) * math.log(1 - p)

    pairs = zip(logits.flatten().tolist(), targets.flatten().tolist(), strict=True)
    every = torch.tensor([cross_entropy(*pair) for pair in pairs]).view(2, 3, 4)
    assert taught_objectness(logits, targets).item() == pytest.approx(every.mean().item(), rel=1e-5)
    expected = (every.sum(-1) * weights).sum() / weights.sum()
    assert taught_classes(logits, targets, weights).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_teachers_own_word_is_the_best_answer_and_nothing_weighs_nothing() -> None:
    _, classes = split_classes(torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1)))
    logits = torch.logit(classes).requires_grad_()
    taught_classes(logits, classes, torch.ones(1, 5)).backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-6, rtol=0)
    nothing = taught_classes(logits, classes, torch.zeros(1, 5))
    nothing.backward()
    assert nothing.item() == 0.0
