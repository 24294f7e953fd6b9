"""SDR's and REMINDER's losses: hand-computed values, loops over classes, and pixels that never count."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.losses.prototypes import (
    attraction,
    class_sums,
    prototype_matching,
    public_attraction,
    public_class_sums,
    public_matching,
    repulsion,
    shrink_labels,
    sparsity,
)
from comastre.losses.similarity import class_similarity, similarity_distillation, upsampled_class_sums


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels of four classes with some ignored, and prototypes of five: the last is not there."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(2, 3, 4, 5, generator=generator)
    labels = torch.randint(4, (2, 4, 5), generator=generator)
    labels[:, 0] = 255
    return features, labels, torch.rand(5, 3, generator=generator)


def of_class(features: Tensor, labels: Tensor, label: int) -> Tensor:
    """(n, C)."""
    return features.movedim(1, 3)[labels == label]


def test_sums_matching_attraction_and_repulsion_against_loops(batch):
    features, labels, prototypes = batch
    found = class_sums(features, labels, 5)
    known = torch.tensor([False, True, True, True, True])
    groups = [of_class(features, labels, label) for label in range(5)]
    assert found.counts.tolist() == [len(group) for group in groups] and int(found.counts.sum()) == 2 * 3 * 5
    for label, group in enumerate(groups):
        torch.testing.assert_close(found.sums[label], group.sum(dim=0))
    distances = [(groups[label].mean(dim=0) - prototypes[label]).square().mean() for label in (1, 2, 3)]
    torch.testing.assert_close(prototype_matching(found, prototypes, known), torch.stack(distances).mean())
    spreads = [(groups[label] - prototypes[label]).square().mean() for label in (1, 2, 3)]
    torch.testing.assert_close(attraction(features, labels, prototypes, known), torch.stack(spreads).mean())
    means = [group.mean(dim=0) for group in groups[:4]]
    inverse = [1 / (one - other).norm() for one in means for other in means if one is not other]
    torch.testing.assert_close(repulsion(found), torch.stack(inverse).mean())


@pytest.mark.parametrize(("values", "ratio"), [((2.0, 1.0, 0.0), 3.578002), ((2.0, 0.0, 0.0), 4.718282)])
def test_sparsity_by_hand(values, ratio):
    features = torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1)
    found = sparsity(features, torch.zeros(1, 1, 1, dtype=torch.long), 1).item()
    shares = [value / 2 for value in values]
    assert found == pytest.approx(sum(map(math.exp, shares)) / sum(shares), rel=1e-6)
    assert found == pytest.approx(ratio, abs=5e-7)


def test_sparsity_divides_by_the_largest_of_the_class(batch):
    features, labels, _ = batch
    expected = []
    for label in range(4):
        group = of_class(features, labels, label)
        shares = group / group.max()
        expected += list(shares.exp().sum(dim=1) / shares.sum(dim=1))
    torch.testing.assert_close(sparsity(features, labels, 4), torch.stack(expected).mean())
    nothing = torch.zeros(1, 3, 2, 2, requires_grad=True)
    zero = sparsity(nothing, torch.zeros(1, 2, 2, dtype=torch.long), 1)
    zero.backward()
    assert zero.item() == 0.0 and torch.equal(nothing.grad, torch.zeros_like(nothing))


def test_one_class_alone_and_none_at_all_are_exact_zeros(batch):
    features, labels, prototypes = batch
    features = features.requires_grad_()
    unknown = torch.zeros(5, dtype=torch.bool)
    ignored = torch.full_like(labels, 255)
    for zero in (
        repulsion(class_sums(features, torch.zeros_like(labels), 5)),
        repulsion(class_sums(features, ignored, 5)),
        prototype_matching(class_sums(features, labels, 5), prototypes, unknown),
        attraction(features, ignored, prototypes, ~unknown),
        sparsity(features, ignored, 5),
    ):
        assert zero.item() == 0.0
        (gradient,) = torch.autograd.grad(zero, features)
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_the_public_code_is_right_for_one_image_and_one_class_where_it_can_be(batch):
    features, labels, prototypes = batch
    one, truth = features[:1], torch.where(labels[:1] == 255, 255, 1)
    ours, public = class_sums(one, truth, 5), public_class_sums(one, truth, 5)
    torch.testing.assert_close(public.sums, ours.sums)
    known = torch.ones(5, dtype=torch.bool)
    torch.testing.assert_close(public_attraction(one, truth, prototypes), attraction(one, truth, prototypes, known))
    # Rows of (n, C) mix channels, so that the mean is another.
    mixed = public_matching(one, truth, prototypes)
    assert not torch.isclose(mixed, prototype_matching(ours, prototypes, known))


def test_labels_shrink_by_their_nearest_values():
    labels = torch.tensor([[[1, 1, 2, 2], [1, 1, 2, 2], [255, 255, 0, 0], [255, 255, 0, 0]]])
    assert shrink_labels(labels, torch.zeros(1, 3, 2, 2)).tolist() == [[[1, 2], [255, 0]]]


# --- REMINDER --------------------------------------------------------------------------------------------------------


def two_old_classes(delta: float) -> float:
    """Cosines of 0.9 and 0.1 to two old classes; old logits (1, 0), new ones (2, 0, 5)."""
    new = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    old = torch.tensor([[0.9, math.sqrt(1 - 0.81)], [0.1, math.sqrt(1 - 0.01)]], dtype=torch.float64)
    similarity = class_similarity(new, old, delta)
    expected = [0.689974, 0.310026 if delta == 0 else 0.0]
    assert similarity[0].tolist() == pytest.approx(expected, abs=5e-7)
    logits = torch.tensor([2.0, 0.0, 5.0], dtype=torch.float64).view(1, 3, 1, 1)
    old_logits = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 2, 1, 1)
    return similarity_distillation(logits, old_logits, torch.full((1, 1, 1), 2), similarity, 3.0).item()


def test_similarity_distillation_by_hand():
    assert two_old_classes(0.0) == pytest.approx(2.758147, abs=5e-6)
    assert two_old_classes(1.0) == pytest.approx(1.499036, abs=5e-6)


def test_only_pixels_of_new_classes_are_distilled():
    logits, old_logits = torch.randn(1, 4, 2, 3), torch.randn(1, 2, 2, 3)
    similarity = torch.rand(2, 2)
    labels = torch.tensor([[[0, 1, 2], [3, 255, 2]]])
    found = similarity_distillation(logits, old_logits, labels, similarity, 3.0)
    alone = []
    for row, column in ((0, 2), (1, 0), (1, 2)):
        cut = (slice(None), slice(None), slice(row, row + 1), slice(column, column + 1))
        label = labels[:, row : row + 1, column : column + 1]
        alone.append(similarity_distillation(logits[cut], old_logits[cut], label, similarity, 3.0))
    torch.testing.assert_close(found, torch.stack(alone).mean())
    assert similarity_distillation(logits, old_logits, labels * 0, similarity, 3.0).item() == 0.0


def test_half_precision_around_them_does_not_reach_products():
    features, labels = torch.rand(2, 8, 4, 5), torch.randint(3, (2, 13, 11))
    plain = upsampled_class_sums(features, labels, 3)[0]
    similarity = class_similarity(plain, features[0, :, 0].T, 0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(upsampled_class_sums(features, labels, 3)[0], plain)
        assert torch.equal(class_similarity(plain, features[0, :, 0].T, 0.0), similarity)


def test_sums_of_resized_features_without_resizing_them():
    features, labels = torch.rand(2, 3, 4, 5), torch.randint(3, (2, 13, 11))
    labels[:, :2] = 255
    large = F.interpolate(features, size=(13, 11), mode="bilinear", align_corners=True)
    sums, counts = upsampled_class_sums(features, labels, 4)
    for label in range(4):
        group = of_class(large, labels, label)
        assert int(counts[label]) == len(group)
        torch.testing.assert_close(sums[label], group.sum(dim=0), rtol=1e-4, atol=1e-4)
