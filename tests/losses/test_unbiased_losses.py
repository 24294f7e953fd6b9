"""MiB's losses: hand-computed values, the definition over explicit sums, and pixels that never count."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from comastre.losses.unbiased import cross_entropy, unbiased_cross_entropy, unbiased_distillation


def pixel(*values: float) -> Tensor:
    """Logits of one pixel, (1, K, 1, 1)."""
    return torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1)


def label(value: int) -> Tensor:
    return torch.full((1, 1, 1), value)


def test_hand_computed_values():
    logits = pixel(2, 1, 0)  # background, an old class, a new one
    assert cross_entropy(logits, label(0)).item() == pytest.approx(0.407606, abs=5e-7)
    assert unbiased_cross_entropy(logits, label(0), num_old=2).item() == pytest.approx(0.094344, abs=5e-7)
    assert unbiased_cross_entropy(logits, label(2), num_old=2).item() == pytest.approx(2.407606, abs=5e-7)
    distance = unbiased_distillation(logits, pixel(1, 0), label(0))
    assert distance.item() == pytest.approx(0.291878, abs=5e-7)
    assert 10 * distance.item() == pytest.approx(2.918778, abs=5e-6)


def a_batch(seed: int, num_old: int, num_new: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, num_old + num_new, 3, 4, generator=generator, dtype=torch.float64) * 3
    old_logits = torch.randn(2, num_old, 3, 4, generator=generator, dtype=torch.float64) * 3
    choices = torch.tensor([0, *range(num_old, num_old + num_new), 255])
    labels = choices[torch.randint(len(choices), (2, 3, 4), generator=generator)]
    return logits, old_logits, labels


@pytest.mark.parametrize(("seed", "num_old", "num_new"), [(0, 3, 2), (1, 2, 1), (2, 5, 4)])
def test_the_definition_over_explicit_sums(seed, num_old, num_new):
    logits, old_logits, labels = a_batch(seed, num_old, num_new)
    entropies, distances = [], []
    for image in range(2):
        for row in range(3):
            for column in range(4):
                truth = int(labels[image, row, column])
                if truth == 255:
                    continue
                odds = [math.exp(value) for value in logits[image, :, row, column].tolist()]
                p = [value / sum(odds) for value in odds]
                old_odds = [math.exp(value) for value in old_logits[image, :, row, column].tolist()]
                q = [value / sum(old_odds) for value in old_odds]
                entropies.append(-math.log(sum(p[:num_old]) if truth == 0 else p[truth]))
                terms = [q[0] * math.log(p[0] + sum(p[num_old:]))]
                terms += [q[old] * math.log(p[old]) for old in range(1, num_old)]
                distances.append(-sum(terms) / num_old)
    found = unbiased_cross_entropy(logits, labels, num_old)
    assert found.item() == pytest.approx(sum(entropies) / len(entropies), rel=1e-9)
    distance = unbiased_distillation(logits, old_logits, labels)
    assert distance.item() == pytest.approx(sum(distances) / len(distances), rel=1e-9)


def test_a_labelled_old_class_keeps_its_label():
    logits = pixel(2, 1, 0)
    assert torch.equal(unbiased_cross_entropy(logits, label(1), 2), cross_entropy(logits, label(1)))


def test_ignored_pixels_never_count():
    logits, old_logits, labels = a_batch(3, 3, 2)
    labels[:, 0] = 255
    changed, old_changed = logits.clone(), old_logits.clone()
    changed[:, :, 0] += 5 * torch.randn_like(changed[:, :, 0])
    old_changed[:, :, 0] *= -1
    for loss in (
        lambda new, old, seen: cross_entropy(new, seen),
        lambda new, old, seen: unbiased_cross_entropy(new, seen, 3),
        unbiased_distillation,
    ):
        whole = loss(logits, old_logits, labels)
        torch.testing.assert_close(loss(changed, old_changed, labels), whole)
        torch.testing.assert_close(loss(logits[:, :, 1:], old_logits[:, :, 1:], labels[:, 1:]), whole)


def test_nothing_labelled_is_an_exact_zero_with_a_whole_graph():
    logits, old_logits, labels = a_batch(4, 3, 2)
    logits.requires_grad_()
    labels.fill_(255)
    total = (
        cross_entropy(logits, labels)
        + unbiased_cross_entropy(logits, labels, 3)
        + unbiased_distillation(logits, old_logits, labels)
    )
    total.backward()
    assert total.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_distillation_is_least_where_old_probabilities_are_those_of_the_old_model():
    """New classes that take their share of the background alone cost nothing."""
    _, old_logits, labels = a_batch(5, 3, 0)
    labels.fill_(0)
    background = old_logits[:, :1] - math.log(3)
    same = torch.cat([background, old_logits[:, 1:], background, background], dim=1).requires_grad_()
    unbiased_distillation(same, old_logits, labels).backward()
    assert same.grad.abs().max() < 1e-12
