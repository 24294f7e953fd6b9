"""PLOP's pseudo-labels: hand-computed entropies and thresholds, a true median, and what is never relabelled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from comastre.losses.pseudo_labels import (
    count_uncertainties,
    entropy,
    median_thresholds,
    pseudo_label,
    public_entropy,
    public_thresholds,
)


def pixel(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1)


@pytest.mark.parametrize(
    ("probabilities", "public", "of_four_classes"),
    [
        ((0.9, 0.05, 0.05), 0.119665, 0.086320),
        ((1 / 3, 1 / 3, 1 / 3), 0.333333, 0.240449),
        ((0.98, 0.01, 0.01), 0.033953, 0.024492),
    ],
)
def test_entropies_by_hand(probabilities, public, of_four_classes):
    """Ours is a share of the largest; the public code's is that divided by the classes and by a logarithm again."""
    found = entropy(pixel(*probabilities)).item()
    assert found == pytest.approx(3 * public, abs=2e-6)
    assert public_entropy(pixel(*probabilities), 4).item() == pytest.approx(of_four_classes, abs=2e-6)


def test_entropy_is_between_none_and_all():
    assert entropy(pixel(0.9, 0.05, 0.05)).item() == pytest.approx(0.358996, abs=2e-6)
    assert entropy(pixel(1, 0, 0)).item() == pytest.approx(0, abs=1e-6)
    assert entropy(pixel(0.25, 0.25, 0.25, 0.25)).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("counts", "threshold"),
    [((900, 80, 20), 0.005556), ((300, 600, 100), 0.018333), ((400, 350, 250), math.inf), ((0, 0, 0), 0.001)],
)
def test_thresholds_of_the_public_search_by_hand(counts, threshold):
    histogram = torch.zeros(1, 100, dtype=torch.long)
    histogram[0, :3] = torch.tensor(counts)
    assert public_thresholds(histogram, 0.001).item() == pytest.approx(threshold, abs=5e-7)


def test_the_median_is_that_of_the_pixels():
    generator = torch.Generator().manual_seed(0)
    uncertainty = torch.rand(2, 40, 50, generator=generator).square()
    predicted = torch.randint(3, (2, 40, 50), generator=generator)
    counted = torch.rand(2, 40, 50, generator=generator) < 0.7
    histogram = count_uncertainties(uncertainty, predicted, counted, num_classes=4, bins=1000)
    assert int(histogram.sum()) == int(counted.sum())
    thresholds = median_thresholds(histogram, 0.001)
    for label in range(3):
        exact = uncertainty[counted & (predicted == label)].median().item()
        assert thresholds[label].item() == pytest.approx(exact, abs=2e-3)
    assert thresholds[3].item() == pytest.approx(0.001)  # never predicted


def test_only_background_is_relabelled_and_only_where_the_old_model_is_sure():
    labels = torch.tensor([[[0, 0, 0, 3, 255]], [[3, 3, 3, 3, 255]]])
    predicted = torch.tensor([[[1, 2, 0, 1, 1]], [[1, 1, 1, 1, 1]]])
    uncertainty = torch.tensor([[[0.1, 0.3, 0.1, 0.0, 0.0]], [[0.0] * 5]])
    found = pseudo_label(labels, predicted, uncertainty, torch.tensor([0.2, 0.2, 0.2]))
    assert found.labels.tolist() == [[[1, 255, 0, 3, 255]], [[3, 3, 3, 3, 255]]]
    # Two of three background pixels; an image without background is sure of all there is.
    assert found.sure.tolist() == pytest.approx([2 / 3, 1.0])
