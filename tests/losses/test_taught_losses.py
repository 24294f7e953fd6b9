"""Soft targets of a teacher on the same queries, against sums written out."""

import math

import pytest
import torch

from comastre.losses.classification import focal_loss
from comastre.losses.taught import split_classes, taught_classes, taught_objectness


def test_no_object_is_apart_from_the_classes() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.25, 0.25]]))
    objectness, classes = split_classes(logits)
    torch.testing.assert_close(objectness, torch.tensor([0.4, 0.75]))
    torch.testing.assert_close(classes, torch.tensor([[0.25, 0.75], [2 / 3, 1 / 3]]))
    # What is surely nothing still has a distribution, not 0 / 0.
    objectness, classes = split_classes(torch.tensor([[1.0, 1.0, 500.0]]))
    assert objectness.tolist() == [0.0] and classes.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_both_losses_equal_the_sums_written_out(gamma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=generator)
    targets, weights = (torch.rand(*size, generator=generator) for size in ((2, 3, 4), (2, 3)))

    def focal(logit: float, target: float, gamma: float) -> float:
        p = 1 / (1 + math.exp(-logit))
        return -target * (1 - p) ** gamma * math.log(p) - (1 - target) * p**gamma * math.log(1 - p)

    def every(gamma: float) -> torch.Tensor:
        pairs = zip(logits.flatten().tolist(), targets.flatten().tolist(), strict=True)
        return torch.tensor([focal(*pair, gamma) for pair in pairs]).view(2, 3, 4)

    assert taught_objectness(logits, targets).item() == pytest.approx(every(0.0).mean().item(), rel=1e-5)
    expected = (every(gamma).sum(-1) * weights).sum() / weights.sum()
    assert taught_classes(logits, targets, weights, gamma).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_teacher_without_doubt_teaches_as_labels_do() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([[0, 3, 1], [2, 2, 0]])
    sure = torch.nn.functional.one_hot(labels, 4).float()
    there = torch.tensor([[True, False, True], [True, True, False]])
    taught = taught_classes(logits, sure, there.float(), 2.0)
    torch.testing.assert_close(taught, focal_loss(logits, labels, there, 2.0))


def test_the_teachers_own_word_is_the_best_answer_and_nothing_weighs_nothing() -> None:
    _, classes = split_classes(torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1)))
    logits = torch.logit(classes).requires_grad_()
    taught_classes(logits, classes, torch.ones(1, 5), 0.0).backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-6, rtol=0)
    nothing = taught_classes(logits, classes, torch.zeros(1, 5), 0.0)
    nothing.backward()
    assert nothing.item() == 0.0


def test_focusing_makes_logits_smaller_and_leaves_their_order() -> None:
    """A lesson's new class, taught by Eq. 2, would else never reach the logit of an old one that it is mistaken for."""
    _, classes = split_classes(3 * torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(3)))
    logits = torch.zeros_like(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = taught_classes(logits, classes, torch.ones(1, 6), 2.0)
        value.backward()
        return value

    optimiser.step(loss)
    best, plain = logits.detach(), torch.logit(classes)
    assert best.argsort(-1).equal(classes.argsort(-1))
    ratio = plain / best
    assert ratio.min() > 2.0 and ratio.max() < 3.0
