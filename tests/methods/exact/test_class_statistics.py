"""Sums over proposals, the discriminant that they make, and which proposal shows an object."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from comastre.methods.class_statistics import Sums, on_labelled, precision_of
from comastre.methods.exact.discriminant import Discriminant
from comastre.methods.features_in_masks import features_of, first_level
from comastre.nets.outputs import PixelEmbeddings

WIDTH, CLASSES = 6, 4


def some_proposals(count: int = 300) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    owned = torch.randint(-1, CLASSES, (count,), generator=generator)
    centres = 3 * torch.randn(1 + CLASSES, WIDTH, generator=generator)
    mixing = torch.randn(WIDTH, WIDTH, generator=generator)
    return centres[owned + 1] + torch.randn(count, WIDTH, generator=generator) @ mixing, owned


def summed(features: Tensor, owned: Tensor) -> Sums:
    sums = Sums.zeros(CLASSES, WIDTH)
    sums.add(features, owned)
    return sums


def test_sums_are_those_of_a_loop_over_proposals() -> None:
    features, owned = some_proposals()
    sums = summed(features, owned)
    scatter = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for place in range(-1, CLASSES):
        mine = features[owned == place].double()
        assert int(sums.counts[place + 1]) == len(mine)
        torch.testing.assert_close(sums.means[place + 1], mine.mean(0))
        for row in mine:
            scatter += torch.outer(row - mine.mean(0), row - mine.mean(0))
    torch.testing.assert_close(sums.covariance(), scatter / len(features))


def test_sums_do_not_depend_on_how_proposals_come() -> None:
    features, owned = some_proposals()
    whole, parts = summed(features, owned), Sums.zeros(CLASSES, WIDTH)
    for chosen in torch.randperm(len(owned)).split(7):
        parts.add(features[chosen], owned[chosen])
    torch.testing.assert_close(parts.means, whole.means)
    torch.testing.assert_close(parts.covariance(), whole.covariance())


def test_log_odds_are_those_of_normal_distributions_with_one_covariance() -> None:
    features, owned = some_proposals()
    sums = summed(features, owned)
    discriminant = Discriminant(WIDTH, CLASSES)
    discriminant.learn_all(sums, shrinkage=0.2)
    covariance = sums.covariance()
    shrunk = 0.8 * covariance + 0.2 * torch.diag(covariance.diagonal())
    densities = torch.stack(
        [torch.distributions.MultivariateNormal(mean, shrunk).log_prob(features.double()) for mean in sums.means],
        dim=1,
    )
    # Each mean of n masks is too far out by D / n; half of it is made up for.
    densities = densities + 0.25 * WIDTH / sums.counts
    odds = discriminant(features).double()
    torch.testing.assert_close(odds - odds[:, :1], densities - densities[:, :1], rtol=1e-3, atol=1e-2)


def test_a_class_of_few_masks_is_as_likely_as_one_of_many() -> None:
    """Two classes in the same place, whose features do not depend on each other: neither gets more of new objects."""
    generator = torch.Generator().manual_seed(0)
    width, found = 100, []
    for _ in range(30):
        few, many, new = (torch.randn(number, width, generator=generator) for number in (4, 2000, 40))
        discriminant = Discriminant(width, 2)
        discriminant.counts[1:] = torch.tensor([4.0, 2000.0])
        discriminant.means[1:] = torch.stack([few.mean(0), many.mean(0)])
        found.append(discriminant(new)[:, 1] - discriminant(new)[:, 2])
    # Of the 12.5 that it would be too unlikely, on average, half is left.
    assert torch.cat(found).mean() == pytest.approx(-width / 16, abs=1.0)


def test_a_class_of_which_nothing_was_seen_is_never_found() -> None:
    features, owned = some_proposals()
    chosen = owned != 2
    discriminant = Discriminant(WIDTH, CLASSES)
    discriminant.learn_all(summed(features[chosen], owned[chosen]), shrinkage=0.2)
    assert discriminant.known.tolist() == [True, True, False, True]
    assert not (discriminant(features).argmax(dim=1) == 2 + 1).any()


def test_growth_leaves_every_row_as_it_was() -> None:
    features, owned = some_proposals()
    discriminant = Discriminant(WIDTH, CLASSES - 1)
    first = owned < CLASSES - 1
    sums = Sums.zeros(CLASSES - 1, WIDTH)
    sums.add(features[first], owned[first])
    discriminant.learn_all(sums, shrinkage=0.2)
    before = {name: tensor.clone() for name, tensor in discriminant.state_dict().items()}
    discriminant.grow(1)
    discriminant.learn_newest(summed(features, owned), 1)
    assert torch.equal(discriminant.means[:-1], before["means"])
    assert torch.equal(discriminant.counts[:-1], before["counts"])
    assert torch.equal(discriminant.precision, before["precision"])
    torch.testing.assert_close(discriminant.means[-1], features[owned == CLASSES - 1].mean(0))


def test_features_that_never_vary_do_not_divide_by_nothing() -> None:
    features, owned = some_proposals()
    features[:, 2] = 1.0
    assert bool(torch.isfinite(precision_of(summed(features, owned).covariance(), 0.0)).all())


def test_a_proposal_shows_an_object_that_it_overlaps_by_more_than_half() -> None:
    generator = torch.Generator().manual_seed(1)
    proposed = torch.rand(40, 6, 7, generator=generator) < 0.5
    labels = torch.randint(0, 4, (6, 7), generator=generator)
    proposed[:3] = labels == torch.tensor([1, 2, 3])[:, None, None]
    proposed[1, 0] = False
    labelled = torch.stack([labels == label for label in (1, 2, 3)])
    counted = torch.rand(6, 7, generator=generator) < 0.9
    found = on_labelled(proposed, labelled, counted)
    for mask, shows in zip(proposed, found.tolist(), strict=True):
        overlaps = [
            float((mask & target & counted).sum()) / float(((mask | target) & counted).sum()) for target in labelled
        ]
        assert shows == any(overlap > 0.5 for overlap in overlaps)
    assert found[:3].all() and not found.all()
    assert not on_labelled(proposed, labelled[:0], counted).any()


def test_features_are_means_of_pixel_embeddings_inside_a_mask() -> None:
    generator = torch.Generator().manual_seed(2)
    levels = [torch.randn(2, 3, side, side, generator=generator) for side in (2, 4, 8)]
    finest = torch.randn(2, 3, 16, 16, generator=generator)
    masks = torch.rand(2, 5, 16, 16, generator=generator) < 0.3
    masks[1, 4] = False
    padding = torch.zeros(2, 16, 16, dtype=torch.bool)
    padding[1, :, 8:] = True
    shrunk = [padding[:, ::step, ::step] for step in (8, 4, 2)]
    pixels = PixelEmbeddings((levels[0], levels[1], levels[2]), finest, (shrunk[0], shrunk[1], shrunk[2]))
    assert [first_level(stride) for stride in (32, 16, 8)] == [0, 0, 1]
    features, filled = features_of(pixels, masks, 0)
    torch.testing.assert_close(features_of(pixels, masks, 1)[0][..., :3], features[..., 3:])
    for image in range(2):
        for mask in range(5):
            inside = masks[image, mask] & ~padding[image]
            assert bool(filled[image, mask]) == bool(inside.any())
            if not inside.any():
                continue
            for level, step in ((0, 8), (1, 4)):
                rows, columns = inside.nonzero(as_tuple=True)
                expected = levels[level][image][:, rows // step, columns // step].mean(dim=1)
                torch.testing.assert_close(features[image, mask, 3 * level : 3 * level + 3], expected)
    nothing, filled = features_of(pixels, masks[:, :0], 0)
    assert nothing.shape == (2, 0, 6) and filled.shape == (2, 0)
