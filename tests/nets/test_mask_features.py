"""Masks that are computed only where they are asked for are those that would be computed everywhere."""

import torch
import torch.nn.functional as F

from comastre.losses.matching import logits_at
from comastre.losses.points import sample_at
from comastre.nets.mask_features import MaskFeatures, MaskProducts
from comastre.nets.outputs import QueryMasks, take_queries

BATCH, QUERIES, DIM, CHANNELS = 2, 5, 6, 7


def make() -> MaskProducts:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    features = MaskFeatures(draw(BATCH, CHANNELS, 8, 12), draw(DIM, CHANNELS), draw(DIM))
    return MaskProducts(draw(BATCH, QUERIES, DIM), features)


def all_masks(masks: MaskProducts) -> torch.Tensor:
    """First the projection of every pixel, then its product with every kernel."""
    features = masks.features
    pixels = torch.einsum("dc, bchw -> bdhw", features.weight, features.maps) + features.bias[:, None, None]
    return torch.einsum("bnd, bdhw -> bnhw", masks.kernels, pixels)


def test_the_projection_may_be_made_of_the_queries() -> None:
    masks = make()
    torch.testing.assert_close(masks.logits, all_masks(masks))
    projected = torch.einsum("bnd, bdhw -> bnhw", masks.kernels, masks.features.projected)
    torch.testing.assert_close(projected, all_masks(masks))


def test_masks_of_some_queries_are_those_of_all() -> None:
    masks = make()
    query = torch.tensor([[4, 0, 0], [1, 3, 2]])
    layer = QueryMasks(torch.zeros(BATCH, QUERIES, DIM), masks)
    torch.testing.assert_close(layer.mask_logits_of(query), take_queries(all_masks(masks), query))
    computed = QueryMasks(layer.embeddings, all_masks(masks))
    torch.testing.assert_close(layer.mask_logits_of(query), computed.mask_logits_of(query))


def test_resized_features_give_resized_masks() -> None:
    masks = make()
    small = masks.features.resized((4, 6)).masks(masks.kernels)
    torch.testing.assert_close(small, F.interpolate(all_masks(masks), size=(4, 6), mode="bilinear"))


def test_sampled_features_give_sampled_masks_at_the_border_too() -> None:
    masks = make()
    points = torch.rand(BATCH, 50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    points[:, :4] = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.01, 0.5], [0.5, 0.99]])
    layers = [QueryMasks(torch.zeros(BATCH, QUERIES, DIM), each) for each in (masks, all_masks(masks))]
    fast, slow = logits_at(layers, points)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(slow, sample_at(all_masks(masks), points))


def test_gradients_are_those_of_all_masks() -> None:
    masks = make()
    leaves = (masks.kernels, masks.features.maps, masks.features.weight, masks.features.bias)
    for leaf in leaves:
        leaf.requires_grad_()
    query = torch.tensor([[4, 0], [1, 3]])
    layer = QueryMasks(torch.zeros(BATCH, QUERIES, DIM), masks)
    fast = torch.autograd.grad(layer.mask_logits_of(query).square().sum(), leaves)
    slow = torch.autograd.grad(take_queries(all_masks(masks), query).square().sum(), leaves)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other)
