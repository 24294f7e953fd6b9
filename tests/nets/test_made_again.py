"""What costs little is made again for the gradient: the same gradient, and nothing kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from comastre.nets.folded_norm import fold_norms
from comastre.nets.made_again import made_again, recomputing


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def product(leaves: tuple[Tensor, Tensor, Tensor], again: bool, sums: list[StorageWeakRef] | None = None) -> Tensor:
    """A linear layer of a sum, whose memory is noted in `sums`."""
    tokens, positions, weight = leaves
    queries = tokens + positions
    if sums is not None:
        sums.append(StorageWeakRef(queries.untyped_storage()))
    if not again:
        return F.linear(queries, weight)
    with made_again(queries, torch.add, tokens, positions):
        return F.linear(queries, weight)


def test_gradients_are_the_same_to_the_bit() -> None:
    leaves = leaf(2, 5, 4), leaf(5, 4), leaf(3, 4)
    plain, again = (torch.autograd.grad(product(leaves, each).square().sum(), leaves) for each in (False, True))
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_the_tensor_is_not_kept() -> None:
    def kept(again: bool) -> bool:
        """Not by the memory of the process: what is freed may stay with it."""
        sums: list[StorageWeakRef] = []
        result = product((leaf(2, 5, 4), leaf(5, 4), leaf(3, 4)), again, sums)
        assert result.requires_grad
        return not sums[0].expired()

    assert kept(again=False)
    assert not kept(again=True)


def test_what_has_changed_since_is_not_taken_for_what_it_was() -> None:
    leaves = leaf(2, 5, 4), leaf(5, 4), leaf(3, 4)
    result = product(leaves, again=True)
    with torch.no_grad():
        leaves[1].add_(1.0)
    with pytest.raises(RuntimeError, match="has changed since"):
        result.sum().backward()


def test_nothing_is_done_without_gradients_and_where_all_is_recomputed() -> None:
    def never(*given: Tensor) -> Tensor:
        raise AssertionError("made again")

    tokens, weight = leaf(2, 4), leaf(3, 4)
    with torch.no_grad(), made_again(tokens, never):
        F.linear(tokens, weight)
    with recomputing(), made_again(tokens, never):
        result = F.linear(tokens, weight)
    result.sum().backward()


def test_gradients_through_folded_kernels_are_those_of_both_layers() -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
        return Features(layers).eval()

    images = torch.randn(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    plain, folded = network(), network()
    fold_norms(folded, images)
    for model in (plain, folded):
        model(images)[0].square().sum().backward()
    for one, other in zip(plain.parameters(), folded.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


class Features(nn.Module):
    """A network that gives a list of features."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, images: Tensor) -> list[Tensor]:
        return [self.layers(images)]
